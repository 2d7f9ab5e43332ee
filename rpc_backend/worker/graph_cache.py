"""What was compiled for a client, which it may ask for again by a digest.

Belongs here: what is kept. Must not be here: compiling or running it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """Something that gives back what it holds."""

    def close(self) -> None: ...


Entry = TypeVar("Entry", bound=Closable)


@dataclass(frozen=True, slots=True)
class _Cached(Generic[Entry]):
    """An entry, and the handles of all buffers that it touches."""

    entry: Entry
    handles: frozenset[int]


class GraphCache(Generic[Entry]):
    """The last used plans or tasks of one session on one device. Used by the thread of that device only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._cached: OrderedDict[bytes, _Cached[Entry]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cached)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._cached

    def find(self, digest: bytes) -> Entry | None:
        """Return an entry, if it is still trusted."""
        cached = self._cached.get(digest)
        if cached is None:
            return None
        self._cached.move_to_end(digest)
        return cached.entry

    def add(self, digest: bytes, entry: Entry, handles: Iterable[int]) -> None:
        """Keep an entry; the least recently used one goes if there are too many."""
        self._cached[digest] = _Cached(entry, frozenset(handles))
        if len(self._cached) > self._limit:
            _, oldest = self._cached.popitem(last=False)
            oldest.entry.close()

    def drop_buffer(self, handle: int) -> None:
        """Forget every entry that touches a buffer."""
        for digest in [digest for digest, cached in self._cached.items() if handle in cached.handles]:
            self._cached.pop(digest).entry.close()

    def clear(self) -> None:
        """Forget everything."""
        while self._cached:
            self._cached.popitem()[1].entry.close()
