"""The thread that owns a socket: start with an outcome, stop within a deadline.

Belongs here: the life of the thread. Must not be here: sockets, messages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rpc_backend.errors import DeadlineError
from rpc_backend.fabric.waker import Waker

JOIN_MARGIN_S = 2.0


class IoThread:
    """Runs `body(self)` on a thread of its own. `body` calls `opened` once it serves and returns soon after
    `stop_deadline` is set; what it raises before `opened` is raised by `start`."""

    def __init__(self, name: str, body: Callable[[IoThread], None]) -> None:
        self.waker = Waker()
        self.stop_deadline: float | None = None
        self._body = body
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    @property
    def linger_s(self) -> float:
        """Seconds left until the stop deadline, 0 if none is set."""
        return max(0.0, (self.stop_deadline or 0.0) - time.monotonic())

    def start(self, timeout_s: float) -> None:
        """Return when the body called `opened`.

        Raises:
            DeadlineError: it took longer.
        """
        self._thread.start()
        if not self._ready.wait(timeout_s):
            self.stop_deadline = time.monotonic()
            self.waker.wake()
            raise DeadlineError(f"{self._thread.name} did not open within {timeout_s:g} s")
        if self._failure is not None:
            raise self._failure

    def opened(self) -> None:
        """Let `start` return. Called by the body."""
        self._ready.set()

    def stop(self, linger_s: float) -> None:
        """Ask the body to end within `linger_s` and wait for that, unless called on the thread itself."""
        deadline = time.monotonic() + linger_s
        self.stop_deadline = deadline if self.stop_deadline is None else min(deadline, self.stop_deadline)
        self.waker.wake()
        if not self.is_current:
            self._thread.join(linger_s + JOIN_MARGIN_S)

    def _run(self) -> None:
        try:
            self._body(self)
        except BaseException as error:
            if self._ready.is_set():
                raise
            self._failure = error
        finally:
            self._ready.set()
            self.waker.close()
