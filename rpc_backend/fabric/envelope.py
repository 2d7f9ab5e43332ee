"""What the fabric itself says to the other side, in front of a message or alone.

Belongs here: the bytes of these frames. Must not be here: what is done about them (`pairing`).

Such a frame begins with a byte that no header has: 0xc1 is the one that msgpack never uses. They are sent only after
HELLO found a link that both sides have.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from rpc_backend.errors import RemoteProtocolError

MARK = 0xC1
_HEAD = struct.Struct("!BBH")
_MAX_SIZES = 64


class Say(IntEnum):
    """READY: the link may be used towards me. DECLINED: it may not. PAYLOADS: the next frame is the header of a message
    whose payloads, of these sizes, travel on the link."""

    READY = 1
    DECLINED = 2
    PAYLOADS = 3


@dataclass(frozen=True, slots=True)
class Envelope:
    """One such frame; `sizes` in bytes, of PAYLOADS only."""

    say: Say
    sizes: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """Return its bytes."""
        return _HEAD.pack(MARK, self.say, len(self.sizes)) + struct.pack(f"!{len(self.sizes)}Q", *self.sizes)


def read_envelope(frames: Sequence[memoryview]) -> Envelope | None:
    """Return the envelope of a message, None if it has none.

    Raises:
        RemoteProtocolError: it is malformed, or not followed by what it needs.
    """
    first = frames[0] if frames else memoryview(b"")
    if first.nbytes == 0 or first[0] != MARK:
        return None
    if first.nbytes < _HEAD.size:
        raise RemoteProtocolError(f"an envelope of {first.nbytes} bytes is cut short")
    _, say, count = _HEAD.unpack_from(first)
    if say not in set(Say) or count > _MAX_SIZES or first.nbytes != _HEAD.size + 8 * count:
        raise RemoteProtocolError(f"an envelope of kind {say} with {count} sizes in {first.nbytes} bytes is not known")
    sizes = struct.unpack_from(f"!{count}Q", first, _HEAD.size)
    n_frames = 2 if say == Say.PAYLOADS else 1
    if len(frames) != n_frames or (count > 0) != (say == Say.PAYLOADS):
        raise RemoteProtocolError(f"an envelope {Say(say).name} with {count} sizes and {len(frames) - 1} more frames")
    return Envelope(Say(say), sizes)
