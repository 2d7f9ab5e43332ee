"""Commands by which tensors go from worker to worker.

Belongs here: what comes in under tickets, copies that go out, who may write for whom. Must not be here: links
(`worker.peers`), who waits (`mailbox`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rpc_backend.errors import WorkerLostError
from rpc_backend.protocol import encode_error, parse_endpoint
from rpc_backend.protocol.codec import decode_record
from rpc_backend.protocol.commands import (
    BURY_TICKETS,
    COPY_TENSOR_TO,
    DROP_TICKETS,
    PEER_ADMIT,
    PEER_BARRIER,
    PEER_CONNECT,
    PEER_FAIL,
    PEER_JOIN,
    PEER_PUSH,
)
from rpc_backend.protocol.records import Empty, Failure, PeerProof, Result
from rpc_backend.worker.calls import Call, Promise, handles
from rpc_backend.worker.peer_jobs import CopyJob
from rpc_backend.worker.state import WorkerState
from rpc_backend.worker.task_records import check_ticket
from rpc_backend.worker.tensors import check_range, decode_placed


@handles(PEER_ADMIT)
def peer_admit(state: WorkerState, call: Call) -> Empty:
    """Let workers that know a secret of the client write its tensors here."""
    state.admissions.admit(call.session, call.request.secret)
    return Empty()


@handles(PEER_JOIN)
def peer_join(state: WorkerState, call: Call) -> PeerProof:
    """Let the session of another worker write for the client whose secret it knows."""
    return PeerProof(state.admissions.join(call.session, call.request))


@handles(PEER_CONNECT)
def peer_connect(state: WorkerState, call: Call) -> Result | Promise[Result]:
    """Begin to connect to another worker of the client; answer when the link stands, or will not."""
    way = state.peers.announce(call.session, call.request.endpoint, call.request.secret)
    if way is None:
        return Result(False)
    return Promise(lambda answer: state.peers.open(way, lambda stands: answer(Result(stands))))


@handles(COPY_TENSOR_TO)
def copy_tensor_to(state: WorkerState, call: Call) -> Result | Promise[Result]:
    """Read a tensor and send it to another worker; answer when it is there. The stream goes on meanwhile.

    What can be done through the client instead is answered with False: no way to that worker, or it did not take the
    bytes. Raises as GET_TENSOR where the source is malformed or too small.
    """
    request = call.request
    parse_endpoint(request.endpoint)
    source = decode_placed(state, call.session, call.stream, request.source)
    check_range(source, 0, request.nbytes)
    if request.nbytes > state.config.max_queued_nbytes or not 0 <= request.device < 1 << 31:
        return Result(False)
    data = np.empty(request.nbytes, np.uint8).data
    source.buffer.read_into(source.offset, data)

    def start(answer: Callable[[Result], None]) -> None:
        job = CopyJob(request.device, request.target, data, lambda arrived: answer(Result(arrived)))
        state.peers.copy(call.session, request.endpoint, job)

    return Promise(start)


@handles(PEER_BARRIER)
def peer_barrier(state: WorkerState, call: Call) -> Empty:
    """Answer: all that came before on the stream is written."""
    return Empty()


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


@handles(BURY_TICKETS)
def bury_tickets(state: WorkerState, call: Call) -> None:
    """Keep nothing for tickets: no task will ask for it."""
    state.mailbox.bury([check_ticket(ticket) for ticket in call.request.tickets])
