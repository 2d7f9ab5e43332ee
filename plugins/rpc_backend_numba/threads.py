"""The compute threads of a device.

Belongs here: their start, sleep and end. Must not be here: what they run.

An extra thread makes one native call for its whole life: it sleeps on a semaphore, walks the job with the others,
and never needs the interpreter in between.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import psutil

from rpc_backend.plugin_api import DeviceError
from rpc_backend_numba import layout
from rpc_backend_numba.code import as_callable
from rpc_backend_numba.library import KernelLibrary

_JOIN_TIMEOUT_S = 5.0
_C_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def default_thread_count() -> int:
    """Return the physical cores that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


class ComputeThreads:
    """A fixed set of threads that run one table at a time; the caller of `run` is one of them."""

    def __init__(self, library: KernelLibrary, n_threads: int) -> None:
        self.n_threads = n_threads
        addresses = library.addresses(["run", "serve"] if n_threads > 1 else ["run"])
        self._run = as_callable(addresses["run"], 2)
        self._words = np.zeros(layout.state_words(n_threads) + layout.CACHE_LINE // layout.WORD, np.int64)
        self._state = -(-self._words.ctypes.data // layout.CACHE_LINE) * layout.CACHE_LINE
        self._calls = _native_calls() or _PythonCalls(n_threads)
        self._set(layout.CALL_YIELD, self._calls.yield_address)
        self._lock = threading.Lock()
        self._closed = False
        self._threads: list[threading.Thread] = []
        if n_threads > 1:
            self._start(as_callable(addresses["serve"], 3))

    def run(self, table: npt.NDArray[np.int64]) -> None:
        """Walk a table of `layout` rows with all threads, and return when all are done.

        Raises:
            DeviceError: after `close`.
        """
        with self._lock:
            if self._closed:
                raise DeviceError("the device is closed")
            self._set(layout.JOB_TABLE, table.ctypes.data)
            self._set(layout.JOB_ROWS, len(table))
            self._run(self._state, self.n_threads)

    def close(self) -> None:
        """End the extra threads. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._set(layout.JOB_STOP, 1)
            for index in range(1, self.n_threads):
                self._calls.post(self._semaphore(index))
        for thread in self._threads:
            thread.join(_JOIN_TIMEOUT_S)

    def _start(self, serve: Callable[..., int]) -> None:
        self._set(layout.CALL_WAIT, self._calls.wait_address)
        self._set(layout.CALL_POST, self._calls.post_address)
        for index in range(1, self.n_threads):
            self._calls.prepare(self._semaphore(index))
            thread = threading.Thread(
                target=serve, args=(self._state, index, self.n_threads), name=f"numba-compute-{index}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def _semaphore(self, index: int) -> int:
        return self._state + layout.WORD * (layout.SEMAPHORES + layout.SEMAPHORE_WORDS * index)

    def _set(self, word: int, value: int) -> None:
        ctypes.c_int64.from_address(self._state + layout.WORD * word).value = value


class _NativeCalls:
    """POSIX semaphores and `sched_yield` by address."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._init = library.sem_init
        self._init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
        self.post = library.sem_post
        self.post.argtypes = (ctypes.c_void_p,)
        self.wait_address, self.post_address, self.yield_address = (
            ctypes.cast(function, ctypes.c_void_p).value or 0
            for function in (library.sem_wait, library.sem_post, library.sched_yield)
        )

    def prepare(self, semaphore: int) -> None:
        if self._init(semaphore, 0, 0) != 0:
            raise OSError("sem_init failed")


class _PythonCalls:
    """The same through the interpreter, where the system has no such functions."""

    def __init__(self, n_threads: int) -> None:
        self._semaphores: dict[int, threading.Semaphore] = {}
        self._functions = [_C_CALL(self._wait), _C_CALL(self.post), _C_CALL(self._yield)]
        self.wait_address, self.post_address, self.yield_address = (
            ctypes.cast(function, ctypes.c_void_p).value or 0 for function in self._functions
        )

    def prepare(self, semaphore: int) -> None:
        self._semaphores[semaphore] = threading.Semaphore(0)

    def post(self, semaphore: int) -> int:
        self._semaphores[semaphore].release()
        return 0

    def _wait(self, semaphore: int) -> int:
        self._semaphores[semaphore].acquire()
        return 0

    def _yield(self, unused: int) -> int:
        time.sleep(0)
        return 0


def _native_calls() -> _NativeCalls | None:
    try:
        library = ctypes.CDLL(None)
        calls = _NativeCalls(library)
        calls.prepare(ctypes.addressof(ctypes.create_string_buffer(layout.SEMAPHORE_WORDS * layout.WORD)))
    except (OSError, AttributeError, TypeError):
        return None
    return calls
