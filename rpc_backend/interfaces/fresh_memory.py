"""Getting the pages of memory before they are written, beside whoever writes them.

Belongs here: asking the system for pages. Must not be here: what the memory is for.

The first touch of a page costs more than writing it, much more in a virtual machine that must get it from its host.
Weights come in from the first byte on, so pages are asked for from the last byte on: both meet in between.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import weakref

import numpy as np
import numpy.typing as npt

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14; older ones refuse it
_STEP_NBYTES = 2 << 20
_LEAST_NBYTES = 64 << 20
_MAX_THREADS = 4


def touch_from_the_end(memory: npt.NDArray[np.uint8]) -> list[threading.Thread]:
    """Begin to get the pages of newly mapped memory that will be written whole; returns the threads that do it.

    They end by themselves, soon after the memory is given back too. Nothing happens for little memory, or where the
    system has no such call.
    """
    if memory.nbytes < _LEAST_NBYTES or not sys.platform.startswith("linux"):
        return []
    n_threads = max(1, min(_MAX_THREADS, (os.cpu_count() or 1) // 2))
    offsets = range(0, memory.nbytes - memory.nbytes % mmap.PAGESIZE, _STEP_NBYTES)
    threads = [
        threading.Thread(
            target=_touch, args=(weakref.ref(memory), offsets[::-1][number::n_threads]), name="pages", daemon=True
        )
        for number in range(n_threads)
    ]
    for thread in threads:
        thread.start()
    return threads


def _touch(memory: weakref.ref[npt.NDArray[np.uint8]], offsets: range) -> None:
    advise = ctypes.CDLL(None).madvise  # `mmap.madvise` keeps all other threads of Python waiting
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for offset in offsets:
        array = memory()
        if array is None:
            return
        nbytes = min(_STEP_NBYTES, array.nbytes - offset)
        if advise(array.ctypes.data + offset, nbytes, _POPULATE_WRITE) != 0:
            return  # an older system, or no memory left: whoever writes gets the pages, or the error
