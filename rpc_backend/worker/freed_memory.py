"""What the C library does with memory that is freed.

Belongs here: its settings for a process that serves. Must not be here: buffers of devices (`interfaces`).

Each chunk of an upload comes in memory that ZeroMQ allocates and frees. The C library of Linux gives blocks of that
size back to the system at once, and the next chunk pays for getting its pages again: as much as for its final place.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_KEPT_NBYTES = 32 << 20
_BLOCK_NBYTES = 4 << 20


def keep_freed_memory() -> bool:
    """Keep up to 32 MiB of freed memory per allocating thread, and take blocks of up to 4 MiB from it.

    Sets it for the whole process. False: the C library is another than glibc, nothing was changed.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return bool(library.mallopt(_TRIM_THRESHOLD, _KEPT_NBYTES) and library.mallopt(_MMAP_THRESHOLD, _BLOCK_NBYTES))
