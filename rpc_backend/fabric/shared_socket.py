"""A socket that one I/O thread serves and others may send on.

Belongs here: the lock, and what must be looked at so that no event is missed. Must not be here: queues, messages.

libzmq lets a socket pass from thread to thread if a memory barrier lies between, which the lock is. Whoever has a
message when nothing waits before it sends it at once: to wake the I/O thread for it takes longer than to send it.

Source: "ØMQ sockets" and `ZMQ_FD` in the manual pages of libzmq 4.3. The descriptor is edge-triggered: it tells that
something happened since the socket was last used, by whoever. So the I/O thread waits for the descriptor, never for
the socket itself, asks `is_due` before it waits, and is woken when a sender has taken news off the descriptor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq

from rpc_backend.fabric.sockets import receive


class SharedSocket:
    """`sock` belongs to the I/O thread, which `wake` wakes, but for `borrowed`. Close it before the socket."""

    def __init__(self, sock: zmq.Socket[bytes], wake: Callable[[], None]) -> None:
        self._sock = sock
        self._wake = wake
        self._lock = threading.Lock()
        self._is_closed = False
        self._descriptor = int(sock.fd)

    def fileno(self) -> int:
        """What the I/O thread waits for."""
        return self._descriptor

    def is_due(self, *, is_blocked: bool = False) -> bool:
        """Whether there is a message to receive, or, if sending was refused for want of room, room."""
        with self._lock:
            return self._has(zmq.POLLIN | zmq.POLLOUT if is_blocked else zmq.POLLIN)

    def receive(self, max_frames: int) -> list[zmq.Frame] | None:
        """See `sockets.receive`."""
        with self._lock:
            return receive(self._sock, max_frames) if self._has(zmq.POLLIN) else None

    @contextmanager
    def held(self) -> Iterator[zmq.Socket[bytes]]:
        """Give the I/O thread the socket for a series of messages, between which nobody else's come."""
        with self._lock:
            yield self._sock

    @contextmanager
    def borrowed(self) -> Iterator[zmq.Socket[bytes] | None]:
        """Give any thread the socket to send one message; None: it is in use, or closed. Never waits."""
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            yield None if self._is_closed else self._sock
            if not self._is_closed and self._has(zmq.POLLIN):
                self._wake()
        finally:
            self._lock.release()

    def close(self) -> None:
        """Lend the socket to nobody any more."""
        with self._lock:
            self._is_closed = True

    def _has(self, wanted: int) -> bool:
        events = self._sock.get(zmq.EVENTS)
        return isinstance(events, int) and bool(events & wanted)
