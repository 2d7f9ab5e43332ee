"""The nouns of payloads that travel beside the fabric: PayloadTransport makes a PayloadLink for each connection.

Belongs here: abstract classes, their records and contracts. Must not be here: one transport's rules, or which message
a payload belongs to (`fabric.pairing`).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkOffer:
    """What one side says in HELLO of a link: the transport's name, and bytes that only that transport reads.

    In an answer `refusal` says why there will be none, "" if there will.
    """

    transport: str
    data: bytes
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Carried:
    """What went beside the fabric: links that were up, and whole payloads and their bytes each way."""

    links: int = 0
    payloads_out: int = 0
    nbytes_out: int = 0
    payloads_in: int = 0
    nbytes_in: int = 0


class Tally:
    """Counts of `Carried`. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._carried = Carried()

    def snapshot(self) -> Carried:
        """Return the counts so far."""
        return self._carried

    def opened(self) -> None:
        """Count a link that is up."""
        self._add(Carried(links=1))

    def sent(self, nbytes: int) -> None:
        """Count a payload that left."""
        self._add(Carried(payloads_out=1, nbytes_out=nbytes))

    def received(self, nbytes: int) -> None:
        """Count a payload that came whole."""
        self._add(Carried(payloads_in=1, nbytes_in=nbytes))

    def _add(self, more: Carried) -> None:
        with self._lock:
            now = self._carried
            self._carried = Carried(
                now.links + more.links,
                now.payloads_out + more.payloads_out,
                now.nbytes_out + more.nbytes_out,
                now.payloads_in + more.payloads_in,
                now.nbytes_in + more.nbytes_in,
            )


class PayloadLink(ABC):
    """One connection's way for payloads: a reliable stream of bytes in each direction, in order.

    `connect` is called once, on any thread; from then on only the I/O thread of the connection calls it. No method
    waits. Nobody tells a link that the other side died: the fabric does, and closes it.
    """

    @property
    @abstractmethod
    def offer(self) -> bytes:
        """What the other side's `connect` needs to know."""

    @abstractmethod
    def connect(self, offer: bytes) -> None:
        """Take up the other side's offer; from then on bytes may come, and be sent once the other side did the same.

        Raises:
            ConnectError: the offer cannot be read, or its side cannot be reached.
        """

    @abstractmethod
    def probe(self) -> None:
        """Begin to find out whether the other side, which has connected, can be reached: send it something empty.

        Raises:
            ChannelError: the link is broken.
        """

    @property
    @abstractmethod
    def is_proven(self) -> bool:
        """Whether something sent has reached the other side."""

    @abstractmethod
    def advance(self) -> None:
        """Take note of what the device has done since the last call.

        Raises:
            ChannelError: the link is broken; the message says how.
        """

    @abstractmethod
    def send(self, data: memoryview) -> int:
        """Take bytes from the front of `data`, as many as there is room for now; return how many.

        Those may be changed at once.

        Raises:
            ChannelError: the link is broken.
        """

    @abstractmethod
    def receive_into(self, data: memoryview) -> int:
        """Move received bytes to the front of `data`, as many as are there and fit; return how many.

        What does not fit stays for the next call, however the sender had cut it. What came before a link broke can
        still be had; until it was, no method says that it is broken, and `send` takes nothing.

        Raises:
            ChannelError: the link is broken.
        """

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether all that was sent has reached the other side's memory."""

    @abstractmethod
    def fileno(self) -> int:
        """The descriptor that `arm` makes readable; the same until `close`."""

    @abstractmethod
    def arm(self, is_expecting: bool) -> bool:
        """Make the descriptor readable when something more is done; False if it is already, then call `advance`.

        With `is_expecting` something is under way: it may look for it again for some microseconds first.

        Raises:
            ChannelError: the link is broken.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up the link and its memory at once. Never raises; a second call does nothing."""


class PayloadTransport(ABC):
    """Makes links. `name` is what both sides must have in common; `tally` counts over all links of the process.

    Any thread may call it.
    """

    name: str

    def __init__(self) -> None:
        self.tally = Tally()

    @abstractmethod
    def open_link(self) -> PayloadLink:
        """Make the link of one connection, not connected yet.

        Raises:
            ConnectError: there cannot be one more, or none at all; the message says which part is missing.
        """
