"""What a listener sends to its peers: at once where it can, else in its turn.

Belongs here: the way of a message to the socket, peers that cannot take more now. Must not be here: receiving, who is
connected (`peers`), payloads beside the fabric (`payload_links`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto

import zmq

from rpc_backend.fabric.options import FabricOptions
from rpc_backend.fabric.outgoing import Outgoing
from rpc_backend.fabric.pairing import Pairing, send_paired
from rpc_backend.fabric.peers import Peer
from rpc_backend.fabric.shared_socket import SharedSocket
from rpc_backend.interfaces import PeerId

_RETRY_FAST_MS, _RETRY_SLOW_MS, _FAST_RETRIES = 1, 10, 100

_log = logging.getLogger(__name__)


class _Fate(Enum):
    """What became of a message: a peer that is gone loses it, and the monitor reports that loss."""

    SENT = auto()
    NO_ROOM = auto()
    GONE = auto()


class Outbox:
    """Messages of any thread to the peers of one ROUTER. What does not say otherwise is the I/O thread's.

    `begun` is told that a peer's payloads are under way beside the fabric, `close_now` which peer must be cut off.
    """

    def __init__(self, options: FabricOptions, *, begun: Callable[[Peer], None], close_now: Callable[[PeerId], None]):
        self._options = options
        self._begun = begun
        self._close_now = close_now
        self._inbox: deque[tuple[PeerId, Outgoing]] = deque()
        self._blocked: dict[PeerId, Peer] = {}
        self._n_retries = 0

    @property
    def is_empty(self) -> bool:
        return not (self._inbox or self._blocked)

    @property
    def has_new(self) -> bool:
        """Whether something was left here since `send_all`."""
        return bool(self._inbox)

    @property
    def retry_ms(self) -> int | None:
        """When to try again; None: nobody waits. POLLOUT of a ROUTER says that some peer has room, not which."""
        if not self._blocked:
            return None
        return _RETRY_FAST_MS if self._n_retries < _FAST_RETRIES else _RETRY_SLOW_MS

    def send_now(self, shared: SharedSocket, peers: dict[PeerId, Peer], identity: PeerId, outgoing: Outgoing) -> bool:
        """Send a message on the caller's thread, if nothing is before it and all of it travels inside. Any thread."""
        with shared.borrowed() as sock:
            peer = peers.get(identity)
            if sock is None or peer is None or self._inbox or not self._is_free(peer):
                return False
            fate = _try_to_send(outgoing, None, sock, identity)
            if fate is _Fate.SENT:
                peer.sent(outgoing)
            return fate is not _Fate.NO_ROOM

    def put(self, identity: PeerId, outgoing: Outgoing) -> None:
        """Leave a message for the I/O thread. Any thread."""
        self._inbox.append((identity, outgoing))

    def send_all(self, sock: zmq.Socket[bytes], peers: dict[PeerId, Peer]) -> None:
        """Send what was left here, and try again where there was no room."""
        while self._inbox:
            identity, outgoing = self._inbox.popleft()
            peer = peers.get(identity)
            if peer is not None:
                peer.put(outgoing)
                if identity not in self._blocked:
                    self.send_queued(sock, peer)
        self._n_retries = self._n_retries + 1 if self._blocked else 0
        for peer in list(self._blocked.values()):
            self.send_queued(sock, peer)

    def send_queued(self, sock: zmq.Socket[bytes], peer: Peer) -> None:
        """Send to one peer until its queue is empty or no more can be under way to it."""
        while peer.queue:
            if peer.pairing is not None and peer.pairing.is_sending:
                self._limit_queue(peer)  # called again when it goes on
                break
            if not self._has_room(peer) or not self._send_first(sock, peer):
                self._blocked[peer.identity] = peer
                self._limit_queue(peer)
                return
        self._blocked.pop(peer.identity, None)

    def forget(self, peer: Peer) -> None:
        """A peer is gone."""
        self._blocked.pop(peer.identity, None)
        peer.queue.clear()

    def close(self, peers: Iterable[Peer]) -> None:
        """Let go of the memory of all that was not sent. Any thread, once the I/O thread has ended."""
        self._inbox.clear()
        self._blocked.clear()
        for peer in peers:
            peer.queue.clear()

    def _is_free(self, peer: Peer) -> bool:
        return not peer.queue and not peer.is_closing and peer.pairing is None and self._has_room(peer)

    def _has_room(self, peer: Peer) -> bool:
        return peer.settle() < self._options.max_in_flight_nbytes

    def _send_first(self, sock: zmq.Socket[bytes], peer: Peer) -> bool:
        fate = _try_to_send(peer.queue[0], peer.pairing, sock, peer.identity)
        if fate is _Fate.SENT:
            peer.taken()
            self._begun(peer)
            self._n_retries = 0
        elif fate is _Fate.GONE:
            peer.queue.clear()
        return fate is not _Fate.NO_ROOM

    def _limit_queue(self, peer: Peer) -> None:
        if peer.queued_nbytes > self._options.max_queued_nbytes:
            _log.warning("closing a peer that does not read: %d bytes wait for it", peer.queued_nbytes)
            self._close_now(peer.identity)


def _try_to_send(outgoing: Outgoing, pairing: Pairing | None, sock: zmq.Socket[bytes], identity: PeerId) -> _Fate:
    try:
        send_paired(outgoing, pairing, sock, identity)
    except zmq.Again:
        return _Fate.NO_ROOM
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise
        return _Fate.GONE
    return _Fate.SENT
