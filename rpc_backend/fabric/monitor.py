"""The socket monitor: what happens to connections, as typed events in their order.

Belongs here: the monitor's socket and the meaning of its numbers. Must not be here: reactions.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import zmq

_EVENT = struct.Struct("=Hi")  # pyzmq has a reader of it too, with asyncio and ssl in its wake
_numbers = itertools.count()


class Happened(Enum):
    """What happened to a connection."""

    OPENED = "opened"
    GREETED = "greeted"
    GREETING_FAILED = "greeting failed"
    CONNECT_FAILED = "connect failed"
    CLOSED = "closed"


_MEANINGS = {
    zmq.EVENT_CONNECTED: Happened.OPENED,
    zmq.EVENT_ACCEPTED: Happened.OPENED,
    zmq.EVENT_HANDSHAKE_SUCCEEDED: Happened.GREETED,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: Happened.GREETING_FAILED,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: Happened.GREETING_FAILED,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: Happened.GREETING_FAILED,
    zmq.EVENT_CLOSED: Happened.CONNECT_FAILED,
    zmq.EVENT_DISCONNECTED: Happened.CLOSED,
}
_EVENTS = sum(_MEANINGS)
_WITH_FD = {Happened.OPENED, Happened.CLOSED}


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """One event. `fd` is the descriptor of the connection, -1 where the event has none."""

    happened: Happened
    fd: int


class Monitor:
    """Reads the events of one socket. Make it, use it and close it on the socket's thread, before the socket."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], sock: zmq.Socket[bytes]) -> None:
        address = f"inproc://monitor-{next(_numbers)}"
        sock.monitor(address, _EVENTS)
        self._observed = sock
        self.socket = context.socket(zmq.PAIR)
        self.socket.setsockopt(zmq.RCVHWM, 0)  # a full queue here would stop the I/O thread of libzmq
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(address)

    def events(self) -> Iterator[ConnectionEvent]:
        """Yield what has happened since the last call, without waiting."""
        while self.socket.poll(0):
            event, _ = self.socket.recv_multipart(zmq.NOBLOCK)
            number, value = _EVENT.unpack(event)
            happened = _MEANINGS.get(number)
            if happened is not None:
                yield ConnectionEvent(happened, value if happened in _WITH_FD else -1)

    def close(self) -> None:
        """Close the monitor; without this, ending the context hangs."""
        self._observed.disable_monitor()
        self.socket.close(0)
