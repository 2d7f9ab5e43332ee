"""Tasks from outside, checked before anything uses them.

Belongs here: decoding task records and tickets. Must not be here: running tasks (`tasks`).
"""

from __future__ import annotations

from typing import Any

from rpc_backend.errors import GraphError, LimitError, RemoteProtocolError
from rpc_backend.graph import Tensor, graph_digest
from rpc_backend.interfaces import TICKET_NBYTES
from rpc_backend.protocol.records import Record, Submit
from rpc_backend.worker.devices import check_supported
from rpc_backend.worker.sessions import Session
from rpc_backend.worker.state import Seat, WorkerState
from rpc_backend.worker.tasks import Place, PreparedTask, Target
from rpc_backend.worker.tensors import decode_placed, decode_placed_graph


def check_ticket(ticket: bytes) -> bytes:
    """Return a ticket.

    Raises:
        RemoteProtocolError: it is not of the length of one.
    """
    if len(ticket) != TICKET_NBYTES:
        raise RemoteProtocolError(f"a ticket has {TICKET_NBYTES} bytes, not {len(ticket)}")
    return ticket


def onward_endpoints(record: Record) -> list[str]:
    """Return where the results of a task record go, in order.

    Raises:
        GraphError: the record is malformed.
    """
    return [endpoint for _, endpoint in map(_onward_fields, _fields(record)[4])]


def prepare_task(state: WorkerState, session: Session, seat: Seat, request: Submit) -> tuple[PreparedTask, set[int]]:
    """Check and compile a task whose tensors all lie on one device; return it with the handles that it touches.

    Raises:
        GraphError, HandleError: a tensor is malformed, or not in a buffer of the session on the device.
        LimitError: inputs or results are above what one message may carry.
        UnsupportedOpError: the device does not run a node.
    """
    if graph_digest(request.task) != request.digest:
        raise GraphError("the digest is not that of the task")
    graph_record, *lists, onward = _fields(request.task)
    graph, touched = decode_placed_graph(state, session, seat.index, graph_record)
    handles = set(touched)

    def place(record: Any) -> Place:
        tensor: Tensor = decode_placed(state, session, seat.index, record, handles)
        return Place(tensor.buffer, tensor.offset, tensor.nbytes)

    writes, reads, receives = (tuple(place(record) for record in records) for records in lists)
    targets = tuple(Target(place(record), endpoint) for record, endpoint in map(_onward_fields, onward))
    check_supported(seat.device, graph)
    nbytes_in, nbytes_out = (sum(item.nbytes for item in places) for places in (writes, reads))
    largest = max(nbytes_in, nbytes_out, *(target.place.nbytes for target in targets), 0)
    if largest > state.config.max_payload_nbytes:
        raise LimitError(
            f"inputs, results or a tensor for another worker take {largest} bytes, above the "
            f"{state.config.max_payload_nbytes} that one message may carry; use smaller batches"
        )
    plan = seat.device.compile(graph)
    return PreparedTask(plan, writes, reads, receives, targets, nbytes_in, nbytes_out), handles


def _fields(record: Record) -> Record:
    if len(record) != 5 or not all(isinstance(part, list) for part in record):
        raise GraphError("a task record is a list of five lists: graph, writes, reads, receives, onward")
    return record


def _onward_fields(fields: Any) -> tuple[Any, str]:
    if isinstance(fields, list) and len(fields) == 3 and isinstance(fields[1], str) and type(fields[2]) is int:
        return fields[0], fields[1]
    raise GraphError("an onward entry of a task is a list of tensor, endpoint and device")
