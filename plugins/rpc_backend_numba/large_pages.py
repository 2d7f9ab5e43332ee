"""Large pages under memory that is filled already.

Belongs here: asking the system for them. Must not be here: which memory gets them.

Weights are read from end to end in every step: with pages of 2 MiB a core reads them half as fast again. Asked for
before the first touch they make a load slower, much so in a virtual machine whose host must find them. So they are
made of pages that are there, beside what goes on, but not at once: while the system makes one, whoever needs any other
new page of the process waits, and those who just loaded a model wait for its first token.
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
_RUNS_BEFORE = 3  # a model is warmed up, reads a prompt, and gives its second token


class SmallPages:
    """Filled memory that gets large pages once what goes on has run a few times. Not for several threads at once."""

    def __init__(self) -> None:
        self._found: list[tuple[weakref.ref[npt.NDArray[np.uint8]], int, int]] = []
        self._runs_left = 0

    def add(self, memory: npt.NDArray[np.uint8], start: int, end: int) -> None:
        """Take bytes [start, end) of a mapping in."""
        self._found.append((weakref.ref(memory), start, end))
        self._runs_left = _RUNS_BEFORE

    def count_run(self) -> list[threading.Thread]:
        """Something ran: begin when it was enough. Returns the threads that do it."""
        if not self._found:
            return []
        self._runs_left -= 1
        if self._runs_left > 0:
            return []
        found, self._found = self._found, []
        kept = [(memory, start, end) for reference, start, end in found if (memory := reference()) is not None]
        threads = [make_large_pages(memory, start, end) for memory, start, end in kept]
        return [thread for thread in threads if thread is not None]


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
