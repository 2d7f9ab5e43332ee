"""The thread of an open software device: it moves all bytes, whether or not a program polls.

Belongs here: waiting for sockets, doorbells and times, and calling whoever they belong to. Must not be here: the rules
of sending and receiving.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

_LONGEST_WAIT_S = 10.0
_STOP_TIMEOUT_S = 5.0
READABLE, WRITABLE = select.EPOLLIN, select.EPOLLOUT
Handler = Callable[[int], None]
Attended = Any  # what a doorbell was rung for: whatever the owner of the thread knows to attend


class Nic:
    """One thread that moves the bytes of a device.

    `ring`, `attend_now`, `vanish` and `stop` may be called by any thread; the rest only by who is called from here.
    """

    def __init__(self, name: str, attend: Callable[[Attended], None], shut: Callable[[], None]) -> None:
        """`attend` is called for what was rung; `shut` closes everything, at the end or when the device vanishes."""
        self._attend, self._shut = attend, shut
        self._poller = select.epoll()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._handlers: dict[int, tuple[int, Handler]] = {}
        self._working = threading.Lock()  # held by the thread that attends, which is the device's own but for sends
        self._rung: deque[Attended] = deque()
        self._times: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._sleeping = self._stopping = self._vanishing = self._gone = False
        self._poller.register(self._bell, READABLE)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ring(self, who: Attended) -> None:
        """Have `who` attended soon. Takes no lock: finalizers ring."""
        self._rung.append(who)
        self._wake()

    def attend_now(self, who: Attended) -> None:
        """Attend `who` in the calling thread, unless the device is at work: then it does so itself."""
        if self._rung or not self._working.acquire(blocking=False):
            self.ring(who)
            return
        try:
            self._attend(who)
        finally:
            self._working.release()

    def vanish(self) -> None:
        """Go silent for good, as if the process had died."""
        self._vanishing = True
        self._wake()

    def stop(self, wait: bool) -> None:
        """End the thread."""
        self._stopping = True
        self._wake(always=True)
        if wait and threading.current_thread() is not self._thread:
            self._thread.join(_STOP_TIMEOUT_S)

    def watch(self, fd: int, mask: int, handler: Handler) -> None:
        """Call `handler` with what is possible on a socket, and no longer with what was asked before."""
        known = self._handlers.get(fd)
        if known is None:
            self._poller.register(fd, mask)
        elif known[0] != mask:
            self._poller.modify(fd, mask)
        self._handlers[fd] = (mask, handler)

    def forget(self, fd: int) -> None:
        """Watch a socket no longer; do so before closing it."""
        if self._handlers.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def call_at(self, when: float, function: Callable[[], None]) -> None:
        """Call a function once, at a time of the monotonic clock."""
        heapq.heappush(self._times, (when, next(self._numbers), function))
        self._wake()  # it may sleep longer than that

    def _wake(self, always: bool = False) -> None:
        if (self._sleeping or always) and not self._gone:
            os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        finally:
            with self._working:
                self._gone = True
                self._attend = _nobody
                self._shut()
                self._poller.close()

    def __del__(self) -> None:
        os.close(self._bell)  # not before: who still refers to this may ring

    def _turn(self) -> None:
        events = self._wait()
        with self._working:
            self._handle(events)

    def _handle(self, events: list[tuple[int, int]]) -> None:
        for fd, mask in events:
            if fd == self._bell:
                os.eventfd_read(self._bell)
            elif known := self._handlers.get(fd):
                known[1](mask)
        if self._vanishing:
            self._vanishing = False
            self._attend = _nobody
            self._times.clear()
            self._shut()
        while self._rung:
            self._attend(self._rung.popleft())
        while self._times and self._times[0][0] <= time.monotonic():
            heapq.heappop(self._times)[2]()

    def _wait(self) -> list[tuple[int, int]]:
        self._sleeping = True
        idle = not (self._rung or self._stopping or self._vanishing)
        try:
            return self._poller.poll(self._patience_s() if idle else 0)
        finally:
            self._sleeping = False

    def _patience_s(self) -> float:
        until_next = self._times[0][0] - time.monotonic() if self._times else _LONGEST_WAIT_S
        return min(max(until_next, 0.0), _LONGEST_WAIT_S)


def _nobody(_: Attended) -> None:
    """What a vanished device does for those that ring."""
