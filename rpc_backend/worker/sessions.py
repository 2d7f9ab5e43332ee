"""Sessions: who is connected, and what each has under way.

Belongs here: the record of a session and the table of them. Must not be here: buffers (`handles`), or the
commands themselves.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field

from rpc_backend.errors import LimitError, SessionError
from rpc_backend.interfaces import Plan
from rpc_backend.protocol.negotiation import Agreement
from rpc_backend.protocol.records import Failure
from rpc_backend.worker.events import EventTable
from rpc_backend.worker.graph_cache import GraphCache
from rpc_backend.worker.tasks import PreparedTask
from rpc_backend.worker.uploads import Uploads

_ID_NBYTES = 16


@dataclass(slots=True)
class StreamState:
    """One stream of a session. Only the thread of its device touches it.

    `failure` is the error of a command without reply, until a reply delivers it. `refuses_tasks`: a task was not known,
    and so that none runs before it, none runs until the client begins again there.
    """

    graphs: GraphCache[Plan]
    tasks: GraphCache[PreparedTask]
    uploads: Uploads = field(default_factory=Uploads)
    failure: Failure | None = None
    refuses_tasks: bool = False


@dataclass(slots=True, eq=False)
class Session:
    """One client. `peer` is its address on the socket; `streams` has one entry per device.

    `writes_for` is set if the client is another worker: the session of the client that both serve, whose tensors it
    may write.
    """

    id: bytes
    epoch: int
    peer: bytes
    agreement: Agreement
    streams: list[StreamState]
    closed: bool = False
    queued_nbytes: int = 0
    writes_for: Session | None = None
    events: EventTable = field(default_factory=EventTable)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def queue(self, nbytes: int, limit_nbytes: int) -> None:
        """Count a command that waits for its turn.

        Raises:
            LimitError: the session would have more than `limit_nbytes` waiting.
        """
        with self.lock:
            if self.queued_nbytes + nbytes > limit_nbytes:
                raise LimitError(
                    f"the session has {self.queued_nbytes} bytes waiting and sent {nbytes} more; "
                    f"a client must wait for answers before it passes {limit_nbytes}"
                )
            self.queued_nbytes += nbytes

    def unqueue(self, nbytes: int) -> None:
        """Count a command that ran or was dropped."""
        with self.lock:
            self.queued_nbytes -= nbytes


class SessionTable:
    """The open sessions by peer. Used by the thread that receives; `len` by any."""

    def __init__(self, n_devices: int, graphs_per_stream: int) -> None:
        self._n_devices = n_devices
        self._graphs_per_stream = graphs_per_stream
        self._by_peer: dict[bytes, Session] = {}
        self._n_opened = 0

    def __len__(self) -> int:
        return len(self._by_peer)

    def open(self, peer: bytes, agreement: Agreement) -> Session:
        """Open the session of a peer.

        Raises:
            SessionError: it has one.
        """
        if peer in self._by_peer:
            raise SessionError("this connection has a session already; HELLO comes once")
        self._n_opened += 1
        limit = self._graphs_per_stream
        streams = [StreamState(GraphCache(limit), GraphCache(limit)) for _ in range(self._n_devices)]
        session = Session(secrets.token_bytes(_ID_NBYTES), self._n_opened, peer, agreement, streams)
        self._by_peer[peer] = session
        return session

    def find(self, peer: bytes) -> Session | None:
        """Return the session of a peer, if it has one."""
        return self._by_peer.get(peer)

    def remove(self, peer: bytes) -> Session | None:
        """Take a session out of the table, if there is one, and mark it closed."""
        session = self._by_peer.pop(peer, None)
        if session is not None:
            session.closed = True
        return session

    def all(self) -> list[Session]:
        """Return the open sessions."""
        return list(self._by_peer.values())
