"""Who is connected: which peer speaks on which connection, and what waits for it.

Belongs here: the books, kept by events in their order. Must not be here: sockets, clocks, threads.

Source: a monitor event names a connection by its descriptor, a message names its peer and the descriptor it came on.
Descriptors are used again; identities that a ROUTER makes count upwards and are not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from rpc_backend.fabric.outgoing import Outgoing
from rpc_backend.fabric.pairing import Pairing
from rpc_backend.interfaces import Ticket

_MADE_IDENTITY_NBYTES = 5
_HALF_RANGE = 1 << 31
_MAX_RETIRED = 4096


@dataclass(slots=True)
class Peer:
    """A peer that has sent a message. `inode` tells its connection from a later one with the same descriptor.

    `pairing` is its payload link, if it has one.
    """

    identity: bytes
    fd: int
    inode: int = 0
    is_closing: bool = False
    pairing: Pairing | None = None
    queue: deque[Outgoing] = field(default_factory=deque)
    queued_nbytes: int = 0
    in_flight_nbytes: int = 0
    _in_flight: deque[tuple[Ticket, int]] = field(default_factory=deque)

    def put(self, outgoing: Outgoing) -> None:
        """Queue a message."""
        self.queue.append(outgoing)
        self.queued_nbytes += outgoing.nbytes

    def taken(self) -> None:
        """The first queued message was given to the socket."""
        outgoing = self.queue.popleft()
        self.queued_nbytes -= outgoing.nbytes
        self.sent(outgoing)

    def sent(self, outgoing: Outgoing) -> None:
        """A message was given to the socket."""
        if not outgoing.ticket.done and not (self.pairing is not None and self.pairing.is_sending):
            self._in_flight.append((outgoing.ticket, outgoing.nbytes))
            self.in_flight_nbytes += outgoing.nbytes

    def settle(self) -> int:
        """Forget what the socket has let go of; return the bytes of large messages it still holds."""
        while self._in_flight and self._in_flight[0][0].done:
            self.in_flight_nbytes -= self._in_flight.popleft()[1]
        return self.in_flight_nbytes


class Verdict(Enum):
    """What a message of a not yet known peer is: of a new peer, or of one whose connection is gone or cut."""

    NEW = "new"
    LATE = "late"


class PeerTable:
    """All connections of a listener and the peers on them."""

    def __init__(self) -> None:
        self._connections: dict[int, bytes | None] = {}
        self.peers: dict[bytes, Peer] = {}
        self._retired: dict[bytes, None] = {}

    def opened(self, fd: int) -> Peer | None:
        """A connection was accepted; returns the peer of an earlier one whose end was not seen."""
        stale = self.closed(fd)
        self._connections[fd] = None
        return stale

    def closed(self, fd: int) -> Peer | None:
        """A connection ended; returns the peer that is lost by it."""
        identity = self._connections.pop(fd, None)
        return None if identity is None else self._retire(identity)

    def removed(self, identity: bytes) -> Peer | None:
        """The peer was closed here; its connection stays on the books until its end is seen."""
        return self._retire(identity)

    def arrived(self, identity: bytes, fd: int) -> tuple[Verdict, Peer | None]:
        """A message came from a peer that is not in `peers`; NEW enters it.

        With NEW, a peer is returned that is lost by it: an older one that seemed to have this connection.
        """
        if fd not in self._connections or identity in self._retired:
            return Verdict.LATE, None
        holder = self._connections[fd]
        if holder is not None and not _is_newer(identity, holder):
            return Verdict.LATE, None
        lost = self._retire(holder) if holder is not None else None
        self._connections[fd] = identity
        self.peers[identity] = Peer(identity, fd)
        return Verdict.NEW, lost

    def _retire(self, identity: bytes) -> Peer | None:
        """Take a peer out. What it sent before may still come, when a new connection has its descriptor already."""
        if _is_made(identity):
            self._retired[identity] = None
            if len(self._retired) > _MAX_RETIRED:
                del self._retired[next(iter(self._retired))]
        return self.peers.pop(identity, None)


def _is_newer(identity: bytes, than: bytes) -> bool:
    """Whether a ROUTER made `identity` after `than`; False for identities that clients chose."""
    if not _is_made(identity) or not _is_made(than):
        return False
    ahead = int.from_bytes(identity[1:], "big") - int.from_bytes(than[1:], "big")
    return 0 < ahead % (1 << 32) < _HALF_RANGE


def _is_made(identity: bytes) -> bool:
    return len(identity) == _MADE_IDENTITY_NBYTES and identity[0] == 0
