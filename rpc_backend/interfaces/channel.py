"""The nouns of message traffic: Channel on the client, Listener on the worker, Ticket for what is under way.

Belongs here: abstract classes and their contracts. Must not be here: sockets, or what messages mean.

A message is a list of byte frames, sent by one call and delivered whole by one call. Endpoints are named as text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rpc_backend.interfaces.payloads import Carried, LinkOffer

Frame = bytes | bytearray | memoryview
PeerId = bytes

OnMessage = Callable[[list[memoryview]], None]
"""A whole message came. Runs on the I/O thread and must not wait: nothing else is received meanwhile, and a side that
receives nothing for long looks dead to the other. The views keep their memory alive. An exception ends the channel,
which then reports it as lost with that error."""

OnLost = Callable[[Exception], None]
"""The channel is lost, with the reason. Called once, on the I/O thread; never after `close` or `abort`."""

OnPeerMessage = Callable[[PeerId, list[memoryview]], None]
"""As `OnMessage`, of one peer. An exception closes that peer only."""

OnPeerLost = Callable[[PeerId], None]
"""A peer that had sent a message is gone, or was closed here. Called once for each, on the I/O thread."""


class Ticket(ABC):
    """Says when the bytes of a sent message may be changed again."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether the bytes are no longer needed: sent, or given up because the connection went."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Return when `done`. Not on the I/O thread.

        Raises:
            DeadlineError: it took longer.
        """


@dataclass(frozen=True, slots=True)
class Carrier:
    """How the large payloads of a connection travel: beside the fabric over a transport, or inside with `name` ""."""

    name: str = ""
    carried: Carried = field(default_factory=Carried)


class Channel(ABC):
    """A connection to one worker. Any thread may call any method."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The endpoint as text."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether messages can still be sent."""

    @property
    @abstractmethod
    def queued_nbytes(self) -> int:
        """Bytes given to `send` that did not yet leave for the network."""

    @property
    def carrier(self) -> Carrier:
        """How large payloads travel."""
        return Carrier()

    def offer_links(self) -> list[LinkOffer]:
        """Open the payload links that this side can have, for HELLO to say; none by default. Called once at most."""
        return []

    def take_link(self, answers: Sequence[LinkOffer]) -> None:
        """Use the link that the worker took up, if any, from now on. Called once, after `offer_links`."""

    @abstractmethod
    def send(self, frames: Sequence[Frame]) -> Ticket:
        """Queue one message and return at once; small frames are copied, large ones referenced until it is sent.

        Raises:
            WorkerLostError: the channel is lost or closed.
        """

    @abstractmethod
    def close(self, linger_s: float = 1.0) -> None:
        """Send what is queued, for at most `linger_s` seconds, and close. A second call does nothing."""

    @abstractmethod
    def abort(self) -> None:
        """Close without sending what is queued. Never raises."""


class Listener(ABC):
    """Where clients connect to a worker. Any thread may call any method."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The endpoints as text, with the ports that were picked."""

    @abstractmethod
    def send(self, peer: PeerId, frames: Sequence[Frame]) -> Ticket:
        """Queue one message to a peer and return at once; as `Channel.send`. To a peer that is gone it is dropped."""

    @property
    def carried(self) -> dict[str, Carried]:
        """What went beside the fabric so far, by payload transport, to clients and to other workers."""
        return {}

    def accept_link(self, peer: PeerId, offers: Sequence[LinkOffer]) -> list[LinkOffer]:
        """Take up one of the payload links that a peer offers, and return the answer; [] knows of none, the default.

        Only from within `on_message`, on the I/O thread.
        """
        return []

    @abstractmethod
    def close_peer(self, peer: PeerId, grace_s: float = 0.0) -> None:
        """Cut the connection of a peer; its further messages are dropped. An unknown peer is no error.

        What is queued for it may still leave during `grace_s` seconds. `on_peer_lost` follows soon.
        """

    @abstractmethod
    def close(self, linger_s: float = 1.0) -> None:
        """Send what is queued, for at most `linger_s` seconds, and close. A second call does nothing."""

    @abstractmethod
    def abort(self) -> None:
        """Close without sending what is queued. Never raises."""
