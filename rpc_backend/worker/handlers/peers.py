"""Commands by which tensors go from worker to worker.

Belongs here: what comes in under tickets. Must not be here: what goes out (`worker.peers`), who waits (`mailbox`).
"""

from __future__ import annotations

from rpc_backend.errors import WorkerLostError
from rpc_backend.protocol import encode_error
from rpc_backend.protocol.codec import decode_record
from rpc_backend.protocol.commands import DROP_TICKETS, PEER_FAIL, PEER_PUSH
from rpc_backend.protocol.records import Failure
from rpc_backend.worker.calls import Call, handles
from rpc_backend.worker.state import WorkerState
from rpc_backend.worker.task_records import check_ticket


@handles(PEER_PUSH)
def peer_push(state: WorkerState, call: Call) -> None:
    """Keep a tensor for the task that waits for it, or will."""
    state.mailbox.put(check_ticket(call.request.ticket), call.payload, call.session)


@handles(PEER_FAIL)
def peer_fail(state: WorkerState, call: Call) -> None:
    """Keep why a tensor will not come."""
    failure = decode_record(Failure, call.request.failure)
    state.mailbox.fail(check_ticket(call.request.ticket), failure, call.session)


@handles(DROP_TICKETS)
def drop_tickets(state: WorkerState, call: Call) -> None:
    """Fail the tasks that wait for tickets; the reason is the client's."""
    failure = encode_error(WorkerLostError(call.request.reason), command=DROP_TICKETS.name)
    for ticket in call.request.tickets:
        state.mailbox.fail(check_ticket(ticket), failure, call.session)
