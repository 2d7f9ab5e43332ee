"""What one worker sends to another, and who is told how it went.

Belongs here: one record per kind of message. Must not be here: sending (`peer_link`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rpc_backend.errors import RpcBackendError
from rpc_backend.protocol import Command, encode_error
from rpc_backend.protocol.codec import encode_record
from rpc_backend.protocol.commands import PEER_FAIL, PEER_PUSH
from rpc_backend.protocol.records import Failure, PeerFail, PeerPush, Record
from rpc_backend.worker.links import Link
from rpc_backend.worker.sessions import Session


@dataclass(frozen=True, slots=True)
class Origin:
    """The run of a task whose result is sent, for errors: where its client is told, and of which request."""

    session: Session
    link: Link
    stream: int
    request: int

    def report(self, error: RpcBackendError) -> None:
        """Tell the client that a result could not be sent."""
        if not self.session.closed:
            failure = encode_error(error, command=PEER_PUSH.name)
            self.link.notify(self.stream, failure, PEER_PUSH.code, self.request)


@dataclass(frozen=True, slots=True)
class TicketJob:
    """One message about a ticket; it has no reply."""

    command: Command[Any, None]
    body: Any
    ticket: bytes
    origin: Origin
    payload: memoryview | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self.payload is None else self.payload.nbytes

    def lost(self, error: RpcBackendError) -> None:
        """It was not sent, or may not have arrived. Does not raise."""
        self.origin.report(error)


@dataclass(frozen=True, slots=True)
class CopyJob:
    """Bytes for a tensor of the same client there; `done` says whether they were written. It is called once."""

    device: int
    target: Record
    data: memoryview
    done: Callable[[bool], None]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def lost(self, error: RpcBackendError) -> None:
        """As `TicketJob.lost`; the client has another way and is not told why."""
        self.done(False)


Job = TicketJob | CopyJob


def push_job(ticket: bytes, data: memoryview, origin: Origin) -> TicketJob:
    """Return the message that brings the tensor of a ticket."""
    return TicketJob(PEER_PUSH, PeerPush(ticket), ticket, origin, data)


def fail_job(ticket: bytes, failure: Failure, origin: Origin) -> TicketJob:
    """Return the message that says why the tensor of a ticket will not come."""
    return TicketJob(PEER_FAIL, PeerFail(ticket, encode_record(failure)), ticket, origin)
