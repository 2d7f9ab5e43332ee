"""A network in memory: channels and a listener without sockets or threads, with faults on demand.

Belongs here: the double of `interfaces.channel`. Must not be here: what messages mean.

Everything happens in the caller's thread. Messages wait until `deliver` is called, or are delivered by the sender's own
call with `immediate=True` (in order also when a receiver answers from within its callback).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rpc_backend.errors import WorkerLostError
from rpc_backend.interfaces import Channel, Listener, OnLost, OnMessage, OnPeerLost, OnPeerMessage, PeerId, Ticket

_Frames = list[bytes]


class MemoryTicket(Ticket):
    """Always done: the double copies every frame at once."""

    @property
    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> None:
        """Nothing to wait for."""


@dataclass(slots=True, eq=False)
class _Connection:
    channel: MemoryChannel
    peer: PeerId
    is_known: bool = False  # the listener has received from it
    is_cut: bool = False


@dataclass(slots=True, eq=False)
class _Parcel:
    connection: _Connection
    to_worker: bool
    frames: _Frames


@dataclass(slots=True)
class Sent:
    """What passed the network, for assertions: complete messages in order, lost ones too."""

    to_worker: list[_Frames] = field(default_factory=list)
    to_client: list[_Frames] = field(default_factory=list)


class MemoryNetwork:
    """One listener and its channels, and the faults between them."""

    def __init__(self, *, immediate: bool = False) -> None:
        self.sent = Sent()
        self._immediate = immediate
        self._is_delivering = False
        self._is_held = False
        self._n_gathering = 0
        self._n_to_drop = 0
        self._parcels: deque[_Parcel] = deque()
        self._connections: dict[PeerId, _Connection] = {}
        self._listener: MemoryListener | None = None
        self._peers = itertools.count(1)

    def listen(self, *, on_message: OnPeerMessage, on_peer_lost: OnPeerLost) -> MemoryListener:
        """Open the one listener."""
        self._listener = MemoryListener(self, on_message, on_peer_lost)
        return self._listener

    def connect(self, *, on_message: OnMessage, on_lost: OnLost) -> MemoryChannel:
        """Open a channel to the listener."""
        peer = next(self._peers).to_bytes(5, "big")
        channel = MemoryChannel(self, peer, on_message, on_lost)
        self._connections[peer] = _Connection(channel, peer)
        return channel

    @property
    def n_waiting(self) -> int:
        """How many messages were sent and not delivered."""
        return len(self._parcels)

    def deliver(self, n: int | None = None) -> int:
        """Deliver the next `n` messages, or all, those sent meanwhile too; return how many."""
        if self._is_delivering:
            return 0
        self._is_delivering = True
        count = 0
        try:
            while self._parcels and (n is None or count < n):
                self._hand_over(self._parcels.popleft())
                count += 1
        finally:
            self._is_delivering = False
        return count

    def drop_next(self, n: int = 1) -> None:
        """Lose the next `n` messages that are sent, in either direction."""
        self._n_to_drop += n

    def hold(self) -> None:
        """Delay: messages wait, also with `immediate`, until `release`."""
        self._is_held = True

    def release(self) -> None:
        """End `hold` and deliver what waits."""
        self._is_held = False
        self.deliver()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Let what is sent meanwhile wait for the end, also with `immediate`.

        A thread that answers is not the one that receives: a lock that the sender holds must not stop the receiver.
        """
        self._n_gathering += 1
        try:
            yield
        finally:
            self._n_gathering -= 1
        self._deliver_at_once()

    def cut(self, channel: MemoryChannel, reason: str = "cut by the test") -> None:
        """End a connection: messages under way are lost, both sides are told."""
        self._end(channel.peer, tell_client=WorkerLostError(f"the connection to {channel.name} went away: {reason}"))

    def _post(self, peer: PeerId, frames: Sequence[bytes | bytearray | memoryview], *, to_worker: bool) -> None:
        connection = self._connections.get(peer)
        if connection is None:
            return
        copied = [bytes(frame) for frame in frames]
        (self.sent.to_worker if to_worker else self.sent.to_client).append(copied)
        if self._n_to_drop:
            self._n_to_drop -= 1
            return
        self._parcels.append(_Parcel(connection, to_worker, copied))
        self._deliver_at_once()

    def _deliver_at_once(self) -> None:
        if self._immediate and not self._is_held and not self._n_gathering:
            self.deliver()

    def _hand_over(self, parcel: _Parcel) -> None:
        connection = parcel.connection
        if connection.is_cut:
            return
        views = [memoryview(frame) for frame in parcel.frames]
        try:
            if not parcel.to_worker:
                connection.channel.on_message(views)
            elif self._listener is not None:
                connection.is_known = True
                self._listener.on_message(connection.peer, views)
        except Exception as error:  # as on a real network: a receiver that raises loses the connection
            lost = error if not parcel.to_worker else WorkerLostError(f"the worker closed the connection: {error}")
            self._end(connection.peer, tell_client=lost)

    def _end(self, peer: PeerId, *, tell_client: Exception | None) -> None:
        connection = self._connections.pop(peer, None)
        if connection is None:
            return
        connection.is_cut = True
        if tell_client is not None:
            connection.channel.lose(tell_client)
        if connection.is_known and self._listener is not None and self._listener.is_open:
            self._listener.on_peer_lost(peer)


class MemoryChannel(Channel):
    """A `Channel` of a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, peer: PeerId, on_message: OnMessage, on_lost: OnLost) -> None:
        self.peer = peer
        self.on_message = on_message
        self._network = network
        self._on_lost = on_lost
        self._closed_because = ""

    @property
    def name(self) -> str:
        return f"memory://{int.from_bytes(self.peer, 'big')}"

    @property
    def is_open(self) -> bool:
        return not self._closed_because

    @property
    def queued_nbytes(self) -> int:
        return 0

    def send(self, frames: Sequence[bytes | bytearray | memoryview]) -> Ticket:
        if self._closed_because:
            raise WorkerLostError(f"the channel to {self.name} is closed: {self._closed_because}")
        self._network._post(self.peer, frames, to_worker=True)
        return MemoryTicket()

    def close(self, linger_s: float = 1.0) -> None:
        if self.is_open:
            self._network.deliver()
            self.abort()

    def abort(self) -> None:
        if self.is_open:
            self._closed_because = "closed here"
            self._network._end(self.peer, tell_client=None)

    def lose(self, error: Exception) -> None:
        """The network lost the connection."""
        if self.is_open:
            self._closed_because = str(error)
            self._on_lost(error)


class MemoryListener(Listener):
    """The `Listener` of a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, on_message: OnPeerMessage, on_peer_lost: OnPeerLost) -> None:
        self.on_message = on_message
        self.on_peer_lost = on_peer_lost
        self.is_open = True
        self._network = network

    @property
    def names(self) -> list[str]:
        return ["memory://listener"]

    def send(self, peer: PeerId, frames: Sequence[bytes | bytearray | memoryview]) -> Ticket:
        if self.is_open:
            self._network._post(peer, frames, to_worker=False)
        return MemoryTicket()

    def close_peer(self, peer: PeerId, grace_s: float = 0.0) -> None:
        if grace_s > 0:
            self._network.deliver()
        self._network._end(peer, tell_client=WorkerLostError("the worker closed the connection"))

    def close(self, linger_s: float = 1.0) -> None:
        if self.is_open:
            self._network.deliver()
            self.abort()

    def abort(self) -> None:
        self.is_open = False
        for peer in list(self._network._connections):
            self._network._end(peer, tell_client=WorkerLostError("the worker ended"))
