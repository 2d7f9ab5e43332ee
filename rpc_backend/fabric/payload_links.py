"""The payload links of a listener's peers: which there are, which have something to do.

Belongs here: taking them up, turns, the descriptors to wait on. Must not be here: the sockets of messages (`listener`),
one link's messages (`pairing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import zmq

from rpc_backend.fabric.offers import take_up
from rpc_backend.fabric.options import FabricOptions
from rpc_backend.fabric.pairing import Pairing
from rpc_backend.fabric.payload_memory import PayloadMemory
from rpc_backend.fabric.peers import Peer
from rpc_backend.interfaces import LinkOffer, OnPeerMessage, PayloadTransport

MAX_LINKS = 256


class PayloadLinks:
    """Used by the I/O thread of the listener only."""

    def __init__(
        self, transports: Sequence[PayloadTransport], on_message: OnPeerMessage, options: FabricOptions
    ) -> None:
        """`on_message` gets whole messages."""
        self._transports = transports
        self._on_message = on_message
        self._options = options
        self._memory = PayloadMemory()
        self._by_fd: dict[int, Peer] = {}
        self._due: dict[int, Peer] = {}  # those with something to do, by descriptor
        self._waiting: dict[int, Peer] = {}  # those with a payload under way
        self._registered: set[int] = set()
        self._has_changed = False

    @property
    def have_more(self) -> bool:
        """Whether some link has something to do at once."""
        return bool(self._due)

    @property
    def are_waiting(self) -> bool:
        """Whether some link must be looked at now and then even if nothing wakes."""
        return bool(self._waiting)

    def have_sent_all(self) -> bool:
        """Whether nothing is under way to any peer, or waits for its link."""
        return all(
            not peer.queue and peer.pairing is not None and peer.pairing.is_idle for peer in self._by_fd.values()
        )

    def accept(self, peer: Peer | None, offers: Sequence[LinkOffer]) -> list[LinkOffer]:
        """Take up a link to a peer; return what HELLO answers."""
        if not offers or peer is None or peer.pairing is not None:
            return []
        if len(self._by_fd) >= MAX_LINKS:
            return [LinkOffer(offers[0].transport, b"", f"the worker has {MAX_LINKS} links already")]
        chosen, answer = take_up(self._transports, offers)
        if chosen is not None:
            deliver = partial(self._on_message, peer.identity)
            tallies = (chosen.transport.tally,)
            peer.pairing = Pairing(chosen.link, deliver, self._options, self._memory, tallies)
            self._by_fd[peer.pairing.fileno()] = peer
            self._due[peer.pairing.fileno()] = peer
            self._has_changed = True
        return [answer]

    def register(self, poller: zmq.Poller) -> None:
        """Bring the descriptors to wait on up to date."""
        if not self._has_changed:
            return
        self._has_changed = False
        for fd in self._registered - self._by_fd.keys():
            poller.unregister(fd)
        for fd in self._by_fd.keys() - self._registered:
            poller.register(fd, zmq.POLLIN)
        self._registered = set(self._by_fd)

    def arrived(self, peer: Peer, frames: list[memoryview]) -> None:
        """Take a message of a peer that has a link. Raises as `Pairing.arrived`."""
        assert peer.pairing is not None, "the peer has a link"
        self._due[peer.pairing.fileno()] = peer
        peer.pairing.arrived(frames)
        if peer.pairing.is_declined:
            self.drop(peer)

    def begun(self, peer: Peer) -> None:
        """A message was sent to a peer: give its link a turn if the payload goes there."""
        if peer.pairing is not None and peer.pairing.is_sending:
            self._due[peer.pairing.fileno()] = peer

    def due(self, ready: Mapping[object, int]) -> list[Peer]:
        """Return the peers whose links have something to do, for one turn each."""
        if not self._by_fd:
            return []
        woken = {fd: peer for fd, peer in self._by_fd.items() if fd in ready}
        return list({**self._due, **woken, **self._waiting}.values())

    def advance(self, peer: Peer) -> None:
        """Give a peer's link its turn. Raises as `Pairing.advance`."""
        pairing = peer.pairing
        if pairing is None:
            return
        has_more = pairing.advance() or not pairing.arm()
        if peer.pairing is None:
            return  # it was dropped meanwhile
        if pairing.is_waiting:
            self._waiting[pairing.fileno()] = peer
        else:
            self._waiting.pop(pairing.fileno(), None)
        if has_more:
            self._due[pairing.fileno()] = peer
        else:
            self._due.pop(pairing.fileno(), None)

    def finish(self, peer: Peer) -> None:
        """The peer is gone: deliver what had come of it. Raises as `Pairing.finish`."""
        if peer.pairing is not None:
            peer.pairing.finish()

    def drop(self, peer: Peer) -> None:
        """Close the link of a peer, if it has one."""
        pairing, peer.pairing = peer.pairing, None
        if pairing is not None:
            self._by_fd.pop(pairing.fileno(), None)
            self._due.pop(pairing.fileno(), None)
            self._waiting.pop(pairing.fileno(), None)
            self._has_changed = True
            pairing.close()

    def close(self) -> None:
        """Close all links."""
        for peer in list(self._by_fd.values()):
            self.drop(peer)
