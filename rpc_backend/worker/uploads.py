"""Weights that a client said it would upload, until all of their bytes came.

Belongs here: putting the chunks of an upload together. Must not be here: the bytes, which are in their place already,
or keeping them (`weight_cache`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from rpc_backend.interfaces import Buffer
from rpc_backend.worker.content import Content
from rpc_backend.worker.tasks import Place

_MAX_ANNOUNCED = 1 << 16


@dataclass(slots=True)
class _Announced:
    """A range of a buffer, and how many of its bytes have not come."""

    content: Content
    start: int
    missing_nbytes: int

    @property
    def end(self) -> int:
        return self.start + self.content.nbytes


class Uploads:
    """The announced uploads of one session on one device. Used by the thread of that device only.

    Bytes are counted, not looked at: whoever stores them checks their digest.
    """

    def __init__(self) -> None:
        self._by_buffer: dict[Buffer, list[_Announced]] = {}  # in the order of their starts, without overlap
        self._n_announced = 0

    def __len__(self) -> int:
        return self._n_announced

    def announce(self, content: Content, place: Place) -> None:
        """Expect a range to be written, and forget older ones that it overlaps. Beyond a limit it is ignored."""
        if content.nbytes == 0 or self._n_announced >= _MAX_ANNOUNCED:
            return
        ranges = self._by_buffer.setdefault(place.buffer, [])
        new = _Announced(content, place.offset, content.nbytes)
        first = bisect_right(ranges, new.start, key=lambda old: old.end)
        last = bisect_left(ranges, new.end, key=lambda old: old.start)
        ranges[first:last] = [new]
        self._n_announced += 1 - max(0, last - first)

    def written(self, place: Place) -> Iterator[tuple[Content, Place]]:
        """Count bytes that were written, and yield what is complete with them."""
        ranges = self._by_buffer.get(place.buffer)
        if not ranges:
            return
        end = place.offset + place.nbytes
        first = bisect_right(ranges, place.offset, key=lambda old: old.end)
        for index in range(bisect_left(ranges, end, key=lambda old: old.start) - 1, first - 1, -1):
            found = ranges[index]
            found.missing_nbytes -= min(end, found.end) - max(place.offset, found.start)
            if found.missing_nbytes <= 0:
                del ranges[index]
                self._n_announced -= 1
                yield found.content, Place(place.buffer, found.start, found.content.nbytes)

    def drop_buffer(self, buffer: Buffer) -> None:
        """Forget what was announced for a buffer."""
        self._n_announced -= len(self._by_buffer.pop(buffer, []))

    def clear(self) -> None:
        """Forget everything."""
        self._by_buffer.clear()
        self._n_announced = 0
