"""Tensors and graphs from outside, checked before anything uses them.

Belongs here: decoding against a session's buffers, and questions without places. Must not be here: acting
on them (`handlers`).
"""

from __future__ import annotations

from dataclasses import dataclass

from rpc_backend.errors import GraphError
from rpc_backend.graph import Graph, Tensor, check_graph, check_node, check_tensor, decode_graph, decode_tensor
from rpc_backend.graph.validate import MAX_NBYTES
from rpc_backend.interfaces import Buffer
from rpc_backend.protocol.records import Record
from rpc_backend.worker.calls import Call
from rpc_backend.worker.handles import HeldBuffer
from rpc_backend.worker.sessions import Session
from rpc_backend.worker.state import WorkerState
from rpc_backend.worker.tasks import Place


@dataclass(frozen=True, slots=True)
class _Nowhere:
    """The memory of tensors in a question: as large as any, and never touched."""

    nbytes: int = MAX_NBYTES


def decode_placed(
    state: WorkerState, session: Session, stream: int, record: Record, handles: set[int] | None = None
) -> Tensor:
    """Return a checked tensor in a buffer of `session` on the device of `stream`, whose handle is added to `handles`.

    Raises:
        GraphError: malformed, or not inside its buffer.
        HandleError: the buffer is not this session's, or on another device.
    """

    def resolve(handle: int) -> Buffer:
        if handles is not None:
            handles.add(handle)
        return state.held(session, stream, handle).buffer

    tensor = decode_tensor(record, [], resolve)
    check_tensor(tensor)
    return tensor


def decode_anywhere(state: WorkerState, session: Session, record: Record) -> tuple[Tensor, HeldBuffer]:
    """Return a checked tensor in any buffer of `session`, and that buffer. Raises as `decode_placed`."""
    seen: list[HeldBuffer] = []

    def resolve(handle: int) -> Buffer:
        seen.append(state.handles.find(session.id, handle))
        return seen[-1].buffer

    tensor = decode_tensor(record, [], resolve)
    check_tensor(tensor)
    return tensor, seen[-1]


def decode_placed_graph(
    state: WorkerState, session: Session, stream: int, record: Record
) -> tuple[Graph, frozenset[int]]:
    """Return a checked graph in buffers of `session` on the device of `stream`, and their handles.

    Raises as `decode_placed`.
    """
    handles: set[int] = set()

    def resolve(handle: int) -> Buffer:
        held = state.held(session, stream, handle)
        handles.add(handle)
        return held.buffer

    graph = decode_graph(record, resolve)
    check_graph(graph)
    return graph, frozenset(handles)


def decode_question(record: Record) -> Tensor:
    """Return the tensor that a question is about: the last of its record, which has no places.

    Raises:
        GraphError: malformed, or breaking a rule of its operation.
    """
    records, node_ids = _parts(record)
    tensors: list[Tensor] = []
    for fields in records:
        tensor = decode_tensor(fields, tensors, _no_place)
        tensor.buffer = _Nowhere()
        check_tensor(tensor)
        tensors.append(tensor)
    if node_ids not in ([], [len(tensors) - 1]):
        raise GraphError(f"a question is about the last of its {len(tensors)} tensors, not about {node_ids!r}")
    question = tensors[-1]
    if question.op is not None:
        check_node(question)
    return question


def check_stream(call: Call, device: int) -> None:
    """Check that a command about a device came in the stream of that device.

    Raises:
        GraphError: it did not.
    """
    if call.stream != device:
        raise GraphError(f"a command for device {device} came in the stream of device {call.stream}")


def check_byte(value: int) -> int:
    """Return a byte's value.

    Raises:
        GraphError: it is not from 0 to 255.
    """
    if not 0 <= value <= 255:
        raise GraphError(f"{value} is not the value of a byte, 0 to 255")
    return value


def _parts(record: Record) -> tuple[list[Record], list[int]]:
    if len(record) == 2 and all(isinstance(part, list) for part in record) and record[0]:
        return record[0], record[1]
    raise GraphError("a question is a list of tensors and a list of at most one node id")


def _no_place(handle: int) -> Buffer:
    raise GraphError(f"a question has no places, but one of its tensors is in buffer {handle}")


def decode_range(state: WorkerState, session: Session, stream: int, record: Record, offset: int, nbytes: int) -> Place:
    """Return the place of bytes of a tensor. Raises as `decode_placed` and `check_range`."""
    tensor = decode_placed(state, session, stream, record)
    check_range(tensor, offset, nbytes)
    return Place(tensor.buffer, tensor.offset + offset, nbytes)


def check_range(tensor: Tensor, offset: int, nbytes: int) -> None:
    """Check that `nbytes` at `offset` lie inside the memory of a tensor.

    Raises:
        GraphError: they do not.
    """
    if not 0 <= offset <= offset + nbytes <= tensor.nbytes:
        raise GraphError(f"{nbytes} bytes at {offset} are outside {tensor} of {tensor.nbytes} bytes")
