"""Commands about whole buffers.

Belongs here: allocating, freeing, clearing. Must not be here: tensors in them (`tensors`).
"""

from __future__ import annotations

from rpc_backend.errors import GraphError, OutOfMemoryError
from rpc_backend.interfaces import BufferUsage
from rpc_backend.protocol.commands import ALLOC_BUFFER, BUFFER_CLEAR, BUFFER_GET_BASE, FREE_BUFFER
from rpc_backend.protocol.records import BufferBase, BufferRef
from rpc_backend.worker.calls import Call, handles
from rpc_backend.worker.state import WorkerState
from rpc_backend.worker.tensors import check_byte, check_stream


@handles(ALLOC_BUFFER, despite_error=True)
def alloc_buffer(state: WorkerState, call: Call) -> BufferRef:
    """Allocate a buffer; 0 bytes make an empty one with a handle of its own."""
    check_stream(call, call.request.device)
    seat = state.seat(call.request.device)
    usage, nbytes = _usage(call.request.usage), call.request.nbytes
    try:
        seat.account.reserve(nbytes)
    except OutOfMemoryError:
        if not state.weights.give_up():
            raise
        seat.account.reserve(nbytes)
    try:
        buffer = seat.device.alloc_buffer(nbytes, usage)
    except BaseException:
        seat.account.release(nbytes)
        raise
    return BufferRef(state.handles.add(call.session.id, seat.index, buffer).handle)


@handles(BUFFER_GET_BASE)
def buffer_get_base(state: WorkerState, call: Call) -> BufferBase:
    """Give the first address of a buffer in an invented flat space."""
    return BufferBase(state.handles.find(call.session.id, call.request.handle).base)


@handles(FREE_BUFFER, despite_error=True)
def free_buffer(state: WorkerState, call: Call) -> None:
    """Free a buffer, and forget every graph that touches it."""
    state.free(call.session, state.held(call.session, call.stream, call.request.handle))


@handles(BUFFER_CLEAR)
def buffer_clear(state: WorkerState, call: Call) -> None:
    """Set every byte of a buffer."""
    buffer = state.held(call.session, call.stream, call.request.handle).buffer
    buffer.fill(0, buffer.nbytes, check_byte(call.request.value))


def _usage(text: str) -> BufferUsage:
    try:
        return BufferUsage(text)
    except ValueError as error:
        known = ", ".join(BufferUsage)
        raise GraphError(f"a buffer cannot be for {text!r}; known usages: {known}") from error
