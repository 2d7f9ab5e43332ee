"""Where a tensor of one worker lands on another: what each side of a copy must know of the other.

Belongs here: the meeting of both sides. Must not be here: what they send (`copies`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from rpc_backend.errors import RpcBackendError, WorkerLostError
from rpc_backend.protocol.records import Record

_MAX_BURIED = 1024


class Landing:
    """One copy. `ready` gives the target's record once its memory may be written.

    `landed` is done when it is: with None, or with bytes that came to this process and are still to be sent there.
    """

    def __init__(self) -> None:
        self.ready: Future[Record] = Future()
        self.landed: Future[memoryview | None] = Future()
        for future in (self.ready, self.landed):
            future.set_running_or_notify_cancel()

    def clear(self, target: Record) -> None:
        """The target's memory may be written."""
        with suppress(InvalidStateError):  # it was given up
            self.ready.set_result(target)

    def land(self, data: memoryview | None) -> None:
        """The bytes are there, or here."""
        with suppress(InvalidStateError):
            self.landed.set_result(data)

    def give_up(self, error: RpcBackendError) -> None:
        """There will be no copy: neither side need wait."""
        for future in (self.ready, self.landed):
            with suppress(InvalidStateError):
                future.set_exception(error)


class Landings:
    """The landings of a device by ticket. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[bytes, Landing] = {}
        self._buried: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def at(self, ticket: bytes) -> Landing:
        """Return the landing of a ticket: the same for both sides, who each ask once."""
        with self._lock:
            landing = self._open.pop(ticket, None)
            if landing is not None:
                return landing
            landing = Landing()
            reason = self._buried.pop(ticket, None)
            if reason is None:
                self._open[ticket] = landing
        if reason is not None:
            landing.give_up(WorkerLostError(reason))
        return landing

    def drop(self, tickets: Sequence[bytes], reason: str) -> None:
        """Give up what only one side has asked for, or may still ask for."""
        with self._lock:
            dropped = [landing for ticket in tickets if (landing := self._open.pop(ticket, None)) is not None]
            self._buried.update((ticket, reason) for ticket in tickets)
            while len(self._buried) > _MAX_BURIED:
                self._buried.popitem(last=False)
        for landing in dropped:
            landing.give_up(WorkerLostError(reason))
