"""Clients within the worker's own process: channels without sockets.

Belongs here: the double way of messages between such a client and the service. Must not be here: what the client
speaks outside (a gateway's plugin knows), or what messages mean (`service`).

A message is received by the thread that sends it. Nothing is copied: frames must not change once they are sent.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

from rpc_backend.errors import RpcBackendError, WorkerLostError
from rpc_backend.interfaces import Channel, Listener, OnLost, OnMessage, OnPeerLost, OnPeerMessage, PeerId, Ticket

_NAME = "this worker"
_PEER_PREFIX = b"local-"  # longer than the ids that ZeroMQ invents
_PEER_DIGITS = 12

Frame = bytes | bytearray | memoryview


class _SentTicket(Ticket):
    """The receiver has the frames already."""

    @property
    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> None:
        """Nothing to wait for."""


_SENT = _SentTicket()


class LocalListener(Listener):
    """Where clients of this process come in. Any thread may call any method; callbacks run on the caller's thread."""

    def __init__(self, on_message: OnPeerMessage, on_peer_lost: OnPeerLost) -> None:
        self._on_message = on_message
        self._on_peer_lost = on_peer_lost
        self._numbers = itertools.count(1)
        self._channels: dict[PeerId, LocalChannel] = {}
        self._lock = threading.Lock()
        self._is_open = True

    @property
    def names(self) -> list[str]:
        return [_NAME]

    def connect(self, on_message: OnMessage, on_lost: OnLost) -> Channel:
        """Open a channel; `on_message` runs on any thread that answers, and must not send.

        Raises:
            WorkerLostError: the worker is closing.
        """
        with self._lock:
            if not self._is_open:
                raise WorkerLostError("this worker is closing")
            peer = _PEER_PREFIX + f"{next(self._numbers):0{_PEER_DIGITS}}".encode()
            channel = self._channels[peer] = LocalChannel(self, peer, on_message, on_lost)
        return channel

    def has(self, peer: PeerId) -> bool:
        """Whether a peer came in here, and is connected."""
        return peer in self._channels

    def deliver(self, peer: PeerId, frames: Sequence[Frame]) -> None:
        """Hand a client's message to the service; what the service cannot take ends the channel."""
        try:
            self._on_message(peer, [memoryview(frame) for frame in frames])
        except RpcBackendError as error:
            self.close_peer_because(peer, error)

    def send(self, peer: PeerId, frames: Sequence[Frame]) -> Ticket:
        channel = self._channels.get(peer)
        if channel is not None:
            channel.on_message([memoryview(frame) for frame in frames])
        return _SENT

    def close_peer(self, peer: PeerId, grace_s: float = 0.0) -> None:
        self.close_peer_because(peer, WorkerLostError("the worker closed the connection"))

    def close_peer_because(self, peer: PeerId, error: RpcBackendError | None) -> None:
        """End a channel and tell the service; `error` tells the client, None if it knows."""
        with self._lock:
            channel = self._channels.pop(peer, None)
        if channel is None:
            return
        channel.end(error)
        self._on_peer_lost(peer)

    def close(self, linger_s: float = 1.0) -> None:
        self.abort()

    def abort(self) -> None:
        with self._lock:
            self._is_open = False
            peers = list(self._channels)
        for peer in peers:
            self.close_peer_because(peer, WorkerLostError("the worker ended"))


class LocalChannel(Channel):
    """A `Channel` of a `LocalListener`."""

    def __init__(self, listener: LocalListener, peer: PeerId, on_message: OnMessage, on_lost: OnLost) -> None:
        self.on_message = on_message
        self._listener = listener
        self._peer = peer
        self._on_lost = on_lost
        self._is_open = True

    @property
    def name(self) -> str:
        return _NAME

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def queued_nbytes(self) -> int:
        return 0

    def send(self, frames: Sequence[Frame]) -> Ticket:
        """As the interface says; frames are never copied."""
        if not self._is_open:
            raise WorkerLostError("the channel to this worker is closed")
        self._listener.deliver(self._peer, frames)
        return _SENT

    def close(self, linger_s: float = 1.0) -> None:
        self.abort()

    def abort(self) -> None:
        self._listener.close_peer_because(self._peer, None)

    def end(self, error: RpcBackendError | None) -> None:
        """The listener let go of this channel."""
        self._is_open = False
        if error is not None:
            self._on_lost(error)
