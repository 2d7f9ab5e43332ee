"""What the devices of two queue pairs say to each other over their socket.

Belongs here: layouts. Must not be here: sockets. Each direction of a queue pair has a connection of its own, opened by
the sender; the receiving side answers on it. With a ring the socket carries frames only and the payload lies in shared
memory; with a stream the payload follows its SEND frame.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

HELLO = struct.Struct("!4sHHIII16s16s")  # magic, flags, unused, target, source, psn, source's gid, target's gid
MAGIC = b"zsv1"
FRAME = struct.Struct("<BBHIIIQ")


class HelloFlags(IntEnum):
    """What a sender says of itself."""

    SHARED = 1  # payloads lie in shared memory
    FINITE_RNR = 2  # it gives up when no receive is posted


class Kind(IntEnum):
    """Frames. The first three go to the receiver, the others to the sender."""

    SEND = 1  # one message: value = immediate data, nbytes, and where it lies if it is whole in shared memory
    DATA = 2  # the next piece of a message that is not whole
    MEMORY = 3  # `arena` is the memory whose descriptor comes along; nbytes in `position`
    WELCOME = 4
    ACK = 5  # value = messages placed since the last one, position = ring bytes consumed so far
    ROOM = 6  # position = ring bytes consumed so far
    NAK = 7  # status = why the oldest message failed
    RNR = 8  # no receive is posted; value = microseconds to wait before the message is sent again


class Flags(IntEnum):
    """Flags of a SEND frame."""

    SOLICITED = 1
    WITH_IMM = 2


class Frame(NamedTuple):
    """One frame as its fields."""

    kind: int
    flags: int = 0
    status: int = 0
    value: int = 0
    nbytes: int = 0
    arena: int = 0
    position: int = 0

    def pack(self) -> bytes:
        return FRAME.pack(*self)


class Hello(NamedTuple):
    """The first bytes of a connection: which queue pair wants to send to which."""

    flags: int
    target: int
    source: int
    psn: int
    source_gid: bytes
    target_gid: bytes

    def pack(self) -> bytes:
        return HELLO.pack(MAGIC, self.flags, 0, self.target, self.source, self.psn, self.source_gid, self.target_gid)

    @classmethod
    def unpack(cls, data: bytes) -> Hello | None:
        """Return the greeting, or None when it is none."""
        magic, flags, _, target, source, psn, source_gid, target_gid = HELLO.unpack(data)
        return cls(flags, target, source, psn, source_gid, target_gid) if magic == MAGIC else None


RNR_TIMER_S = tuple(
    1e-3 * delay_ms
    for delay_ms in (
        655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
        2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
    )
)  # fmt: skip
"""Source: InfiniBand Architecture Specification, volume 1, encoding of the RNR NAK timer."""


def retry_budget_s(timeout: int, retry_cnt: int) -> float | None:
    """Return how long a sender waits for a peer that is gone; None is forever.

    Source: the same, local ACK timeout: 4.096 microseconds times two to the exponent, once and for each retry.
    """
    return None if timeout == 0 else 4.096e-6 * (1 << timeout) * (retry_cnt + 1)
