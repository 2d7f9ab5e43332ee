"""One logical message as frames: a header, then exactly the payloads it declares.

Belongs here: the form of the header, limits, the match of declared and actual frames. Must not be here: which
message may come when (`conversation`), records of commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from rpc_backend.errors import LimitError, LocalProtocolError, RemoteProtocolError
from rpc_backend.protocol.codec import pack, unpack

Frame = bytes | bytearray | memoryview
Frames = Sequence[Frame]

MIB = 1 << 20
MAX_SIZE = (1 << 63) - 1


class Kind(IntEnum):
    """What a message is. A notice is an error of a stream that nobody asked for."""

    REQUEST = 0
    REPLY = 1
    ERROR = 2
    NOTICE = 3


_LAST_KIND = max(Kind)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one message may measure."""

    max_header_nbytes: int = 16 * MIB
    max_payload_nbytes: int = 64 * MIB
    max_payloads: int = 1

    @property
    def max_frame_nbytes(self) -> int:
        """Upper bound of any one frame, for the socket."""
        return max(self.max_header_nbytes, self.max_payload_nbytes)


@dataclass(frozen=True, slots=True)
class Header:
    """Frame 0. `ref` is the stream of requests and notices, the request's sequence of replies and errors."""

    kind: Kind
    code: int
    sequence: int
    ref: int
    body: list[Any]
    payload_sizes: list[int]


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A header and its payloads, checked against each other."""

    header: Header
    payloads: tuple[memoryview, ...]


def byte_view(frame: Frame) -> memoryview:
    """Return a frame as flat bytes, without a copy.

    Raises:
        LocalProtocolError: its memory is not contiguous.
    """
    view = memoryview(frame)
    if not view.c_contiguous:
        raise LocalProtocolError("a payload must be contiguous memory")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def encode_message(
    kind: Kind, code: int, sequence: int, ref: int, body: list[Any], payloads: Frames, limits: Limits
) -> list[Frame]:
    """Return the frames of one message; payloads are referenced, not copied.

    Raises:
        LocalProtocolError: the body cannot be encoded.
        LimitError: header or payload are above the limits.
    """
    views = [byte_view(payload) for payload in payloads]
    sizes = [view.nbytes for view in views]
    _check_sizes(sizes, limits)
    header = pack([int(kind), code, sequence, ref, body, sizes])
    if len(header) > limits.max_header_nbytes:
        raise LimitError(f"a header of {len(header)} bytes is above the limit of {limits.max_header_nbytes}")
    return [header, *views]


def decode_message(frames: Frames, limits: Limits) -> RawMessage:
    """Decode one whole message: all of its frames and no other.

    Raises:
        RemoteProtocolError: malformed, or not exactly the payloads that the header declares.
        LimitError: header or payload are above the limits.
    """
    if not frames:
        raise RemoteProtocolError("a message without frames")
    view = byte_view(frames[0])
    if view.nbytes > limits.max_header_nbytes:
        raise LimitError(f"a header of {view.nbytes} bytes is above the limit of {limits.max_header_nbytes}")
    header = _decode_header(unpack(view))
    _check_sizes(header.payload_sizes, limits)
    payloads = tuple(byte_view(frame) for frame in frames[1:])
    actual = [payload.nbytes for payload in payloads]
    if actual != header.payload_sizes:
        raise RemoteProtocolError(
            f"a message declares payloads of {header.payload_sizes[:8]} bytes and carries {actual[:8]}: one message "
            "is sent and received whole"
        )
    return RawMessage(header, payloads)


def _decode_header(fields: Any) -> Header:
    if not isinstance(fields, list) or len(fields) < 6:
        raise RemoteProtocolError("a header is a list of kind, code, sequence, ref, body and payload sizes")
    kind, code, sequence, ref, body, sizes = fields[:6]
    for name, value in (("kind", kind), ("code", code), ("sequence", sequence), ("ref", ref)):
        _check_int(name, value)
    if kind > _LAST_KIND:
        raise RemoteProtocolError(f"a header has the unknown kind {kind}")
    if not isinstance(body, list) or not isinstance(sizes, list):
        raise RemoteProtocolError("body and payload sizes of a header are lists")
    for size in sizes:
        _check_int("payload size", size)
    return Header(Kind(kind), code, sequence, ref, body, sizes)


def _check_int(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SIZE:
        raise RemoteProtocolError(f"a header has the {name} {value!r:.40}, not a number from 0 to {MAX_SIZE}")


def _check_sizes(sizes: Sequence[int], limits: Limits) -> None:
    if len(sizes) > limits.max_payloads:
        raise LimitError(f"a message with {len(sizes)} payloads, the limit is {limits.max_payloads}")
    for size in sizes:
        if size > limits.max_payload_nbytes:
            raise LimitError(f"a payload of {size} bytes is above the limit of {limits.max_payload_nbytes}")
