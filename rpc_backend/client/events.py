"""Events of a worker's streams.

Belongs here: numbers of events, and the work that marks and waits. Must not be here: order (`queue`).

A worker knows an event by a number. It is given again once nobody can name it any more: neither the event nor work that
still waits to be sent.
"""

from __future__ import annotations

import heapq
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from rpc_backend.client.dispatcher import Dispatcher, Pending
from rpc_backend.client.queue import CommandQueue
from rpc_backend.client.work import Later, Wire, Work
from rpc_backend.interfaces import Event
from rpc_backend.protocol.commands import EVENT_RECORD, EVENT_WAIT, SYNCHRONIZE
from rpc_backend.protocol.records import Empty, EventRef


class EventNumbers:
    """The numbers of one connection. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a number may be given back by the garbage collector while one is taken
        self._free: list[int] = []
        self._n_made = 0

    @property
    def n_taken(self) -> int:
        """How many are in use."""
        return self._n_made - len(self._free)

    def take(self) -> EventNumber:
        """Return a number that nobody uses, the lowest there is."""
        with self._lock:
            if self._free:
                value = heapq.heappop(self._free)
            else:
                value = self._n_made = self._n_made + 1
        number = EventNumber(value)
        weakref.finalize(number, self._give_back, value).atexit = False
        return number

    def _give_back(self, value: int) -> None:
        with self._lock:
            heapq.heappush(self._free, value)


class EventNumber:
    """A number in use, for as long as this object lives."""

    __slots__ = ("__weakref__", "value")

    def __init__(self, value: int) -> None:
        self.value = value


class RemoteEvent(Event):
    """An event that streams of one worker can wait for without the host.

    `on` is the queue of the worker's stream that recorded it last, `announced` is done when the worker knows of that.
    """

    def __init__(self, dispatcher: Dispatcher, numbers: EventNumbers) -> None:
        super().__init__()
        self.dispatcher = dispatcher
        self.on: CommandQueue | None = None
        self.announced: Future[None] = Future()
        self._numbers = numbers
        self._number: EventNumber | None = None

    def number(self) -> EventNumber:
        """Return the event's number; it takes one when it is first recorded."""
        if self._number is None:
            self._number = self._numbers.take()
        return self._number

    def close(self) -> None:
        self._number = None
        self.on = None


class MarkWork(Work):
    """A point of a stream: a round trip behind all before it, and with a number the mark for the worker's streams."""

    despite_error = True
    tells_when_sent = True

    def __init__(self, number: EventNumber | None) -> None:
        super().__init__()
        self.passed: Future[None] = Future()
        self.announced: Future[None] = Future()
        self._number = number
        self._was_sent = False

    def send(self, wire: Wire) -> Sequence[Pending[Any]]:
        if self._number is not None:
            wire.post(EVENT_RECORD, EventRef(self._number.value))
        pending = wire.submit(SYNCHRONIZE, Empty())
        self._was_sent = True
        return (pending,)

    def was_sent(self) -> None:
        self.announced.set_result(None)

    def settle(self) -> None:
        if self.error is None:
            self.passed.set_result(None)
            return
        self.passed.set_exception(self.error)
        if not self._was_sent:
            self.announced.set_exception(self.error)


class WaitWork(Later):
    """Holds the stream at the worker until another stream of it has passed its mark."""

    def __init__(self, number: EventNumber, announced: Future[None]) -> None:
        super().__init__(announced, EVENT_WAIT, EventRef(number.value))
        self._number = number  # it must not be given to another event meanwhile
