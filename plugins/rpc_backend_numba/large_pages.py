"""Large pages under memory that is filled already.

Belongs here: asking the system for them. Must not be here: which memory gets them.

Weights are read from end to end in every step: with pages of 2 MiB a core reads them half as fast again. Asked for
before the first touch they make a load slower, much so in a virtual machine whose host must find them. So they are
made of pages that are there, beside what goes on.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref

import numpy as np
import numpy.typing as npt

_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1; older systems refuse it
_PAGE_NBYTES = 2 << 20
_STEP_NBYTES = 8 * _PAGE_NBYTES


def make_large_pages(memory: npt.NDArray[np.uint8], start: int, end: int) -> threading.Thread | None:
    """Begin to put whole large pages under bytes [start, end) of a mapping; returns the thread that does it.

    The content stays, and any thread may use it meanwhile. The thread ends early once the memory is given back. None:
    there is not one whole page, or the system has no such call.
    """
    before = -memory.ctypes.data % _PAGE_NBYTES  # bytes up to the first place where a large page can lie
    first = before + -(-(start - before) // _PAGE_NBYTES) * _PAGE_NBYTES
    last = before + (end - before) // _PAGE_NBYTES * _PAGE_NBYTES
    if first >= last or not sys.platform.startswith("linux"):
        return None
    offsets = range(first, last, _STEP_NBYTES)
    thread = threading.Thread(target=_collapse, args=(weakref.ref(memory), offsets), name="large-pages", daemon=True)
    thread.start()
    return thread


def _collapse(memory: weakref.ref[npt.NDArray[np.uint8]], offsets: range) -> None:
    advise = ctypes.CDLL(None).madvise  # lets other threads of Python go on
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for offset in offsets:
        array = memory()
        if array is None:
            return
        nbytes = min(_STEP_NBYTES, offsets.stop - offset)
        if advise(array.ctypes.data + offset, nbytes, _COLLAPSE) != 0:
            return  # an older system, or no such page free: the pages there are do as well
