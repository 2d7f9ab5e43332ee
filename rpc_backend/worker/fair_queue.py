"""A queue that serves its owners in turn.

Belongs here: the order of service. Must not be here: threads (`lanes`), or what an item waits for.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items of one owner come out in order; owners take turns, one item each. Not safe for threads.

    `wait_s` says of the first item of an owner for how many seconds at most it must still wait, 0 if it can come out.
    An owner whose first item waits is parked: it loses its turn until `wake` or the end of that time.
    """

    def __init__(
        self, wait_s: Callable[[Item], float] = lambda item: 0.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._wait_s = wait_s
        self._clock = clock
        self._items: dict[Hashable, deque[Item]] = {}
        self._round: OrderedDict[Hashable, None] = OrderedDict()
        self._parked: dict[Hashable, float] = {}

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, owner: Hashable, item: Item) -> None:
        """Append an item to its owner's."""
        items = self._items.get(owner)
        if items is None:
            items = self._items[owner] = deque()
            self._round[owner] = None
        items.append(item)

    def take(self) -> Item | None:
        """Remove the next item, whose owner goes to the end of the round; None if all that is queued must wait."""
        self._wake_late()
        while self._round:
            owner, _ = self._round.popitem(last=False)
            items = self._items[owner]
            wait_s = self._wait_s(items[0])
            if wait_s > 0:
                self._parked[owner] = self._clock() + wait_s
                continue
            item = items.popleft()
            if items:
                self._round[owner] = None
            else:
                del self._items[owner]
            return item
        return None

    def wake(self, owner: Hashable) -> None:
        """Let an owner have its turn again, if it is parked."""
        if self._parked.pop(owner, None) is not None:
            self._round[owner] = None

    def idle_s(self) -> float | None:
        """Return the seconds until a parked owner has its turn again unasked; None if that never comes."""
        earliest = min(self._parked.values(), default=math.inf)
        return None if math.isinf(earliest) else max(0.0, earliest - self._clock())

    def drop(self, owner: Hashable) -> list[Item]:
        """Remove and return all items of one owner."""
        self._round.pop(owner, None)
        self._parked.pop(owner, None)
        return list(self._items.pop(owner, ()))

    def _wake_late(self) -> None:
        if self._parked:
            now_s = self._clock()
            for owner in [owner for owner, until_s in self._parked.items() if until_s <= now_s]:
                self.wake(owner)
