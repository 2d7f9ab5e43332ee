"""A queue that serves its owners in turn.

Belongs here: the order of service. Must not be here: threads (`lanes`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items of one owner come out in order; owners take turns, one item each. Not safe for threads."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[Item]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, owner: Hashable, item: Item) -> None:
        """Append an item to its owner's."""
        self._waiting.setdefault(owner, deque()).append(item)

    def take(self) -> Item:
        """Remove the next item; its owner goes to the end of the round. The queue must not be empty."""
        owner, items = next(iter(self._waiting.items()))
        item = items.popleft()
        if items:
            self._waiting.move_to_end(owner)
        else:
            del self._waiting[owner]
        return item

    def drop(self, owner: Hashable) -> list[Item]:
        """Remove and return all items of one owner."""
        return list(self._waiting.pop(owner, ()))
