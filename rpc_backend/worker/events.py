"""Points in streams that other streams of the session wait for.

Belongs here: the count of each event's marks. Must not be here: lanes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from rpc_backend.errors import LimitError
from rpc_backend.protocol.records import Failure

MAX_EVENTS = 1 << 16


@dataclass(slots=True)
class _Event:
    """How often an event was to be marked, and how often its stream came there; `failure` of the last time."""

    n_asked: int = 0
    n_passed: int = 0
    failure: Failure | None = None
    waiting: list[Callable[[], None]] = field(default_factory=list)


class EventTable:
    """The events of one session. Any thread may call it; wakers are called without its lock held.

    A wait is for the mark that was asked for last before it, as the client sees the order: not for later ones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[int, _Event] = {}

    def ask(self, number: int) -> int:
        """Note that an event is to be marked, and return how often that makes.

        Raises:
            LimitError: the session has too many events.
        """
        with self._lock:
            if number not in self._events and len(self._events) >= MAX_EVENTS:
                raise LimitError(f"a session may have {MAX_EVENTS} events; use the number of a freed one again")
            event = self._events.setdefault(number, _Event())
            event.n_asked += 1
            return event.n_asked

    def asked(self, number: int) -> int:
        """Return how often an event was to be marked so far."""
        with self._lock:
            event = self._events.get(number)
            return event.n_asked if event else 0

    def mark(self, number: int, count: int, failure: Failure | None) -> None:
        """The stream has come to mark `count` of an event; `failure` is the error that it waits to report."""
        with self._lock:
            event = self._events[number]
            event.n_passed, event.failure = max(event.n_passed, count), failure
            waiting, event.waiting = event.waiting, []
        for wake in waiting:
            wake()

    def is_passed(self, number: int, count: int, wake: Callable[[], None]) -> bool:
        """Whether mark `count` of an event is passed; if not, `wake` is called once at the next mark."""
        with self._lock:
            event = self._events.get(number)
            if event is None or event.n_passed >= count:
                return True
            event.waiting.append(wake)
            return False

    def failure(self, number: int) -> Failure | None:
        """Return the error that the marking stream had at its last mark."""
        with self._lock:
            event = self._events.get(number)
            return event.failure if event else None
