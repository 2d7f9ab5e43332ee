"""Commands that move the bytes of tensors.

Belongs here: writing, reading, copying. Must not be here: computing (`graphs`).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from rpc_backend.errors import GraphError, LimitError
from rpc_backend.interfaces import Buffer
from rpc_backend.protocol.commands import (
    COPY_TENSOR,
    GET_TENSOR,
    GET_TENSORS,
    INIT_TENSOR,
    MEMSET_TENSOR,
    SET_TENSOR,
)
from rpc_backend.protocol.records import Empty, Record, Result
from rpc_backend.worker.calls import Call, Outcome, handles
from rpc_backend.worker.handlers.weights import note_written
from rpc_backend.worker.sessions import Session
from rpc_backend.worker.state import WorkerState
from rpc_backend.worker.tasks import Place, read_places
from rpc_backend.worker.tensors import check_byte, decode_anywhere, decode_placed, decode_range

_COPY_CHUNK_NBYTES = 16 << 20


@handles(INIT_TENSOR)
def init_tensor(state: WorkerState, call: Call) -> None:
    """Check a tensor's place; no device of ours needs more before its first use."""
    decode_placed(state, call.session, call.stream, call.request.tensor)


@handles(SET_TENSOR)
def set_tensor(state: WorkerState, call: Call) -> None:
    """Write the payload over a tensor's bytes, straight from the received frame."""
    request, payload = call.request, call.payload
    if payload.nbytes != request.nbytes:
        raise GraphError(f"{request.nbytes} bytes are announced and {payload.nbytes} came")
    buffer, offset = _range_of(state, call, call.session.writes_for)
    buffer.write(offset, payload if state.config.load_opt else _buffered(state, call))
    note_written(state, call, buffer, offset, payload.nbytes)


@handles(GET_TENSOR)
def get_tensor(state: WorkerState, call: Call) -> Outcome[Empty]:
    """Read a tensor's bytes."""
    nbytes, limit = call.request.nbytes, state.config.max_payload_nbytes
    buffer, offset = _range_of(state, call)
    if nbytes > limit:
        raise LimitError(f"a read of {nbytes} bytes is above the {limit} that one reply may carry; read it in parts")
    out = np.empty(nbytes, np.uint8).data
    buffer.read_into(offset, out)
    return Outcome(Empty(), payload=out)


@handles(GET_TENSORS)
def get_tensors(state: WorkerState, call: Call) -> Outcome[Empty]:
    """Read the bytes of several tensors, end to end."""
    places = [_place(state, call, *_range_fields(fields)) for fields in call.request.ranges]
    nbytes, limit = sum(place.nbytes for place in places), state.config.max_payload_nbytes
    if nbytes > limit:
        raise LimitError(f"reads of {nbytes} bytes are above the {limit} that one reply may carry; ask for fewer")
    return Outcome(Empty(), payload=read_places(places, nbytes))


@handles(MEMSET_TENSOR)
def memset_tensor(state: WorkerState, call: Call) -> None:
    """Set a tensor's bytes to one value."""
    buffer, offset = _range_of(state, call)
    buffer.fill(offset, call.request.nbytes, check_byte(call.request.value))


@handles(COPY_TENSOR)
def copy_tensor(state: WorkerState, call: Call) -> Result:
    """Copy a tensor of any device of the worker over one of the stream's device."""
    source, held = decode_anywhere(state, call.session, call.request.source)
    target = decode_placed(state, call.session, call.stream, call.request.target)
    if (source.type, source.ne, source.nb) != (target.type, target.ne, target.nb):
        raise GraphError(f"{source} and {target} differ in type, extents or strides {source.nb} and {target.nb}")
    if not target.buffer.copy_from(target.offset, held.buffer, source.offset, source.nbytes):
        _copy_through_host(target.buffer, target.offset, held.buffer, source.offset, source.nbytes)
    return Result(True)


def _buffered(state: WorkerState, call: Call) -> memoryview:
    """Return a copy of the payload, made as if it had to be collected first: the way of `ZMQ_RPC_LOAD_OPT=0`."""
    watch = state.load_watch
    with nullcontext() if watch is None else watch.staging(call.session):
        message = memoryview(bytearray(call.payload.nbytes))
        message[:] = call.payload
    return message


def _range_of(state: WorkerState, call: Call, owner: Session | None = None) -> tuple[Buffer, int]:
    """Return the buffer, and the offset in it, of the tensor range that a request names; `owner` may be another's."""
    request = call.request
    place = _place(state, call, request.tensor, request.offset, request.nbytes, owner)
    return place.buffer, place.offset


def _place(
    state: WorkerState, call: Call, record: Record, offset: int, nbytes: int, owner: Session | None = None
) -> Place:
    return decode_range(state, owner or call.session, call.stream, record, offset, nbytes)


def _range_fields(fields: list[Any]) -> tuple[Record, int, int]:
    if len(fields) == 3 and isinstance(fields[0], list) and all(type(number) is int for number in fields[1:]):
        return fields[0], fields[1], fields[2]
    raise GraphError("a range is a list of tensor, offset and number of bytes")


def _copy_through_host(target: Buffer, target_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
    staging = np.empty(min(nbytes, _COPY_CHUNK_NBYTES), np.uint8).data
    starts = range(0, nbytes, _COPY_CHUNK_NBYTES)
    # Backwards where the target lies behind the source: the two may overlap in one buffer.
    for start in reversed(starts) if target_offset > source_offset else starts:
        part = staging[: min(_COPY_CHUNK_NBYTES, nbytes - start)]
        source.read_into(source_offset + start, part)
        target.write(target_offset + start, part)
