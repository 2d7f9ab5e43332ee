"""The compute threads of a device.

Belongs here: their start, sleep and end. Must not be here: what they run.

An extra thread makes one native call for its whole life: it sleeps on a semaphore, walks the job with the others,
and never needs the interpreter in between.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rpc_backend.plugin_api import DeviceError
from rpc_backend_numba import layout
from rpc_backend_numba.code import as_callable
from rpc_backend_numba.library import KernelLibrary

_JOIN_TIMEOUT_S = 5.0
_C_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class ComputeThreads:
    """A fixed set of threads that run one table at a time; the caller of `run` is one of them."""

    def __init__(self, library: KernelLibrary, n_threads: int) -> None:
        self.n_threads = n_threads
        addresses = library.addresses(["run", "serve"] if n_threads > 1 else ["run"])
        self._run = as_callable(addresses["run"], 2)
        self._library = library  # keeps the code that the threads run
        self._state = _State(n_threads)
        self._calls = _native_calls() or _PythonCalls()
        self._lock = threading.Lock()
        self._closed = False
        members = _start(as_callable(addresses["serve"], 3), self._state, self._calls) if n_threads > 1 else []
        self._end = weakref.finalize(self, _end, self._state, self._calls, members)

    def run(self, table: npt.NDArray[np.int64]) -> None:
        """Walk a table of `layout` rows with all threads, and return when all are done.

        Raises:
            DeviceError: after `close`.
        """
        with self._lock:
            if self._closed:
                raise DeviceError("the device is closed")
            self._state.set(layout.JOB_TABLE, table.ctypes.data)
            self._state.set(layout.JOB_ROWS, len(table))
            self._run(self._state.address, self.n_threads)

    def close(self) -> None:
        """End the extra threads; so does the end of the process. A second call does nothing."""
        with self._lock:
            self._closed = True
            self._end()


class _State:
    """The words that all threads of a set read and write."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._words = np.zeros(layout.state_words(n_threads) + layout.CACHE_LINE // layout.WORD, np.int64)
        self.address = -(-self._words.ctypes.data // layout.CACHE_LINE) * layout.CACHE_LINE

    def set(self, word: int, value: int) -> None:
        ctypes.c_int64.from_address(self.address + layout.WORD * word).value = value

    def semaphore(self, index: int) -> int:
        """Return the address of the semaphore that thread `index` sleeps on."""
        return self.address + layout.WORD * (layout.SEMAPHORES + layout.SEMAPHORE_WORDS * index)


def _start(serve: Callable[..., int], state: _State, calls: _Calls) -> list[threading.Thread]:
    """Start all threads but the first, which is the caller of `run`."""
    state.set(layout.CALL_WAIT, calls.wait_address)
    state.set(layout.CALL_POST, calls.post_address)
    for index in range(state.n_threads):
        calls.prepare(state.semaphore(index))
    members = []
    for index in range(1, state.n_threads):
        arguments = (state.address, index, state.n_threads)
        members.append(threading.Thread(target=serve, args=arguments, name=f"numba-compute-{index}", daemon=True))
        members[-1].start()
    return members


def _end(state: _State, calls: _Calls, members: list[threading.Thread]) -> None:
    """Wake all threads to tell them to return, and wait for them."""
    state.set(layout.JOB_STOP, 1)
    for index in range(1, len(members) + 1):
        calls.post(state.semaphore(index))
    for thread in members:
        thread.join(_JOIN_TIMEOUT_S)


class _Calls(Protocol):
    """What threads need of the system: functions by address, and a way to make and raise a semaphore."""

    wait_address: int
    post_address: int

    def prepare(self, semaphore: int) -> None: ...

    def post(self, semaphore: int) -> int: ...


class _NativeCalls(_Calls):
    """POSIX semaphores by address."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._init, self._post = library.sem_init, library.sem_post
        self._init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
        self._post.argtypes = (ctypes.c_void_p,)
        self.wait_address, self.post_address = (
            ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (library.sem_wait, library.sem_post)
        )

    def prepare(self, semaphore: int) -> None:
        if self._init(semaphore, 0, 0) != 0:
            raise OSError("sem_init failed")

    def post(self, semaphore: int) -> int:
        return int(self._post(semaphore))


class _PythonCalls(_Calls):
    """The same through the interpreter, where the system has no such functions."""

    def __init__(self) -> None:
        self._semaphores: dict[int, threading.Semaphore] = {}
        self._functions = [_C_CALL(self._wait), _C_CALL(self.post)]
        self.wait_address, self.post_address = (
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


def _native_calls() -> _Calls | None:
    try:
        library = ctypes.CDLL(None)
        calls = _NativeCalls(library)
        calls.prepare(ctypes.addressof(ctypes.create_string_buffer(layout.SEMAPHORE_WORDS * layout.WORD)))
    except (OSError, AttributeError, TypeError):
        return None
    return calls
