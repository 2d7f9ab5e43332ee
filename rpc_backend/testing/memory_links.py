"""Payload links in memory, without device, descriptor or thread, with faults on demand.

Belongs here: the double of `interfaces.payloads`. Must not be here: messages, or what the fabric does with links.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import ClassVar

from rpc_backend.errors import ChannelError, ConnectError
from rpc_backend.interfaces import PayloadLink, PayloadTransport


class MemoryLink(PayloadLink):
    """One end. `room_nbytes` is what it takes before the other side reads, `broken` what every later call raises."""

    _ends: ClassVar[dict[bytes, MemoryLink]] = {}
    _numbers = itertools.count(1)

    def __init__(self, room_nbytes: int = 1 << 20) -> None:
        self.room_nbytes = room_nbytes
        self.broken = ""
        self.is_closed = self.is_probed = False
        self.n_armed = 0
        self.peer: MemoryLink | None = None
        self._came = bytearray()
        self._number = next(self._numbers)
        self._ends[self.offer] = self

    @property
    def offer(self) -> bytes:
        return b"memory link %d" % self._number

    def connect(self, offer: bytes) -> None:
        peer = self._ends.get(offer)
        if peer is None:
            raise ConnectError(f"there is no link {offer!r}")
        self.peer = peer

    def probe(self) -> None:
        self.is_probed = True

    @property
    def is_proven(self) -> bool:
        return self.is_probed

    def advance(self) -> None:
        if self.broken:
            raise ChannelError(self.broken)

    def send(self, data: memoryview) -> int:
        assert self.peer is not None, "it is connected"
        taken = min(data.nbytes, self.room_nbytes - len(self.peer._came))
        self.peer._came += data[:taken]
        return taken

    def receive_into(self, data: memoryview) -> int:
        received = min(data.nbytes, len(self._came))
        data[:received] = self._came[:received]
        del self._came[:received]
        return received

    @property
    def is_idle(self) -> bool:
        return self.peer is None or not self.peer._came

    def fileno(self) -> int:
        return self._number

    def arm(self, is_expecting: bool) -> bool:
        self.n_armed += 1
        return True

    def close(self) -> None:
        self.is_closed = True
        self._ends.pop(self.offer, None)


class MemoryPayloads(PayloadTransport):
    """Makes `MemoryLink`s and keeps them in `links`; `refusal` is why it makes none."""

    def __init__(self, name: str = "memory", make: Callable[[], MemoryLink] = MemoryLink) -> None:
        super().__init__()
        self.name = name
        self.refusal = ""
        self.links: list[MemoryLink] = []
        self._make = make

    def open_link(self) -> MemoryLink:
        if self.refusal:
            raise ConnectError(self.refusal)
        self.links.append(self._make())
        return self.links[-1]
