"""Kernels compiled by a process of its own, which takes the memory of numba and LLVM with it when it ends.

Belongs here: that process and talking with it. Must not be here: compiling (`library`), or where kernels are kept
(`cache`).

It gets a line of names and answers with a line once those kernels are in the cache. It stays for a while, as a model
asks for its kernels in several parts and numba takes half a second to start.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rpc_backend_numba.cache import KernelCache
from rpc_backend_numba.targets import choose_target

_LIMIT_S = 600.0
_IDLE_S = 5.0
_END_S = 2.0
_DONE = "done\n"


class Compiler:
    """Compiles kernels into the folder of a cache, outside of this process. Any thread may call it."""

    def __init__(self, target_name: str, folder: Path) -> None:
        module = "rpc_backend_numba.compiler"
        self._command = [sys.executable, "-m", module, target_name, str(folder)]
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def compile(self, names: Sequence[str]) -> bool:
        """Have kernels compiled; False: the process failed or took too long, and wrote why to standard error."""
        with self._lock:
            answer = None if self._child is None else self._child.ask(names)
            if answer is None:
                self._child = _Child(self._command)
                weakref.finalize(self, self._child.end)
                answer = self._child.ask(names)
            return answer is True


class _Child:
    """One process, until it was idle for a while."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._names, self._answers = self._process.stdin, self._process.stdout
        self._lock = threading.Lock()
        self._idle: threading.Timer | None = None

    def ask(self, names: Sequence[str]) -> bool | None:
        """Return whether it compiled `names`; None: it has ended before."""
        with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            if self._process.returncode is not None:
                return None
            is_done = self._ask(" ".join(names))
            if is_done:
                self._idle = _timer(_IDLE_S, self.end)
            else:
                self._stop()
            return is_done

    def _ask(self, line: str) -> bool:
        limit = _timer(_LIMIT_S, self._process.kill)
        try:
            self._names.write(line + "\n")
            self._names.flush()
            return self._answers.readline() == _DONE
        except OSError:  # it ended by itself
            return False
        finally:
            limit.cancel()

    def end(self) -> None:
        """End it. A second call does nothing."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._process.returncode is not None:
            return
        for pipe in (self._names, self._answers):
            with suppress(OSError):  # what it has not read is of no use
                pipe.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _timer(seconds: float, function: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
    return timer


def main(target_name: str, folder: Path) -> None:
    """Compile what standard input asks for, until it ends."""
    from rpc_backend_numba.library import KernelLibrary

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    library = KernelLibrary(choose_target(target_name), KernelCache(folder))
    for line in sys.stdin:
        library.compile_missing(line.split())
        sys.stdout.write(_DONE)
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
