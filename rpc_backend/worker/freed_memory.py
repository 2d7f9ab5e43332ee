"""What the C library does with memory that is freed.

Belongs here: its settings for a process that serves. Must not be here: buffers of devices (`interfaces`).

Each chunk of an upload comes in memory that ZeroMQ allocates and frees. The C library of Linux gives blocks of that
size back to the system at once, and the next chunk pays for getting its pages again: as much as for its final place.
So it keeps them while much comes, and gives them back after that.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # parameters of glibc's mallopt
_KEPT_NBYTES = 32 << 20
_BLOCK_NBYTES = 4 << 20
_MUCH_NBYTES = 4 << 20
_LITTLE_NBYTES = 1 << 20


def keep_freed_memory() -> bool:
    """Keep up to 32 MiB of freed memory, and take blocks of up to 4 MiB from it.

    Sets it for the whole process, whose threads share one heap: what is free at the end of another one never goes back.
    False: the C library is another than glibc, nothing was changed.
    """
    library = _glibc()
    if library is None:
        return False
    wanted = {_TRIM_THRESHOLD: _KEPT_NBYTES, _MMAP_THRESHOLD: _BLOCK_NBYTES, _ARENA_MAX: 1}
    return all(library.mallopt(parameter, value) for parameter, value in wanted.items())


def give_freed_memory_back() -> bool:
    """Give what is kept back to the system. False: there was nothing, or the C library is another than glibc."""
    library = _glibc()
    return library is not None and bool(library.malloc_trim(0))


class UploadWatch:
    """Gives memory back once an upload is over: much came, and since the last look hardly anything."""

    def __init__(
        self, received_nbytes: Callable[[], int], give_back: Callable[[], object] = give_freed_memory_back
    ) -> None:
        """`received_nbytes` counts all that ever came."""
        self._received_nbytes = received_nbytes
        self._give_back = give_back
        self._seen_nbytes = 0
        self._given_back_at_nbytes = 0

    def look(self) -> None:
        """Look at what came; to be called now and then."""
        nbytes = self._received_nbytes()
        new_nbytes, self._seen_nbytes = nbytes - self._seen_nbytes, nbytes
        if new_nbytes < _LITTLE_NBYTES and nbytes - self._given_back_at_nbytes >= _MUCH_NBYTES:
            self._given_back_at_nbytes = nbytes
            self._give_back()


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
