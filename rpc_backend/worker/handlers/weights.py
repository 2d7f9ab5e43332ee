"""Weights by their digest.

Belongs here: the question whether a weight is here, and noticing that one was uploaded. Must not be here: where it is
kept (`rpc_backend.worker.weights`).
"""

from __future__ import annotations

from rpc_backend.interfaces import Buffer, BufferUsage
from rpc_backend.protocol.commands import SET_TENSOR_HASH
from rpc_backend.protocol.records import Result
from rpc_backend.worker.calls import Call, handles
from rpc_backend.worker.content import Content, check_digest
from rpc_backend.worker.state import WorkerState
from rpc_backend.worker.tasks import Place
from rpc_backend.worker.tensors import decode_range


@handles(SET_TENSOR_HASH)
def set_tensor_hash(state: WorkerState, call: Call) -> Result:
    """Put a weight in its place that is here already, or expect its upload."""
    request = call.request
    place = decode_range(state, call.session, call.stream, request.tensor, request.offset, request.nbytes)
    content = Content(check_digest(request.digest), request.nbytes)
    if place.buffer.usage is not BufferUsage.WEIGHTS:
        return Result(False)
    if state.weights.load(content, place):
        return Result(True)
    if state.weights.keeps_uploads:
        call.session.streams[call.stream].uploads.announce(content, place)
    return Result(False)


def note_written(state: WorkerState, call: Call, buffer: Buffer, offset: int, nbytes: int) -> None:
    """Have a weight kept once the last of its announced bytes was written."""
    uploads = call.session.streams[call.stream].uploads
    if uploads:
        for content, place in uploads.written(Place(buffer, offset, nbytes)):
            state.weights.keep(content, place)
