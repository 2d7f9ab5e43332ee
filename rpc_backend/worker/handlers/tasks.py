"""Commands that run tasks: a whole step of a device in one message.

Belongs here: when a task may run, what happens to its tickets. Must not be here: the form of tasks (`task_records`),
how one runs (`tasks`), how tensors travel (`mailbox`, `peers`).
"""

from __future__ import annotations

from functools import partial

from rpc_backend.errors import GraphError, RpcBackendError, StaleGraphError
from rpc_backend.interfaces import TICKET_NBYTES
from rpc_backend.protocol import encode_error
from rpc_backend.protocol.commands import SUBMIT, SUBMIT_ONWARD
from rpc_backend.protocol.records import Failure, Result
from rpc_backend.worker.calls import Call, Outcome, handles
from rpc_backend.worker.peer_jobs import Origin
from rpc_backend.worker.state import WorkerState
from rpc_backend.worker.task_records import check_ticket, onward_endpoints, prepare_task
from rpc_backend.worker.tasks import PreparedTask, read_places, run_task

_EMPTY = memoryview(b"")


def _arrive(state: WorkerState, call: Call) -> int:
    """A task that comes whole and may have to wait is compiled before, while the other workers compute."""
    return 1 if call.request.task and call.request.receive_tickets else 0


def _prepare(state: WorkerState, call: Call) -> None:
    request, stream = call.request, call.session.streams[call.stream]
    if (request.resume or not stream.refuses_tasks) and request.digest not in stream.tasks:
        _compile(state, call)


def _wait_s(state: WorkerState, call: Call) -> float:
    """Hold the stream until all tickets of a task have come; one that will be refused, or fail, waits for nothing."""
    request, stream = call.request, call.session.streams[call.stream]
    if not request.receive_tickets or (stream.refuses_tasks and not request.resume):
        return 0.0
    if not request.task and request.digest not in stream.tasks:
        return 0.0
    if any(len(ticket) != TICKET_NBYTES for ticket in request.receive_tickets):
        return 0.0
    return state.mailbox.wait_s(request.receive_tickets, partial(state.wake, call.stream, call.session.id))


def _skipped(state: WorkerState, call: Call, failure: Failure | None) -> None:
    """Let nobody wait for what a task that does not run would have sent, and keep nothing for it."""
    state.mailbox.bury(call.request.receive_tickets)
    if failure is None:
        return
    if call.request.resume:
        call.session.streams[call.stream].refuses_tasks = False
    _fail_onward(state, call, failure)


@handles(SUBMIT, arrive=_arrive, prepare=_prepare, wait_s=_wait_s, skipped=_skipped)
def submit(state: WorkerState, call: Call) -> Outcome[Result]:
    """Run a task and answer with its results, or say that it is not known and refuse all that follow."""
    task = _find_task(state, call)
    if task is None:
        return Outcome(Result(False), payload=_EMPTY)
    return Outcome(Result(True), payload=_run(state, call, task))


@handles(SUBMIT_ONWARD, arrive=_arrive, prepare=_prepare, wait_s=_wait_s, skipped=_skipped)
def submit_onward(state: WorkerState, call: Call) -> None:
    """Run a task whose results all go to other tasks.

    Raises:
        StaleGraphError: it is not known here; nothing ran.
    """
    task = _find_task(state, call)
    if task is None:
        raise StaleGraphError("the task is not known here (any more); send it whole, and all that followed it again")
    if task.reads:
        raise GraphError("SUBMIT_ONWARD has no answer; a task with results to read comes with SUBMIT")
    _run(state, call, task)


def _find_task(state: WorkerState, call: Call) -> PreparedTask | None:
    """Return the task of a request, compiled if it comes whole; None if it is refused."""
    request, stream = call.request, call.session.streams[call.stream]
    if request.resume:
        stream.refuses_tasks = False
    if stream.refuses_tasks:
        return None
    task = stream.tasks.find(request.digest)
    if task is not None:
        return task
    if not request.task:
        stream.refuses_tasks = True
        return None
    try:
        return _compile(state, call)
    except Exception as error:
        _give_up(state, call, error)
        raise


def _compile(state: WorkerState, call: Call) -> PreparedTask:
    origin = _origin(call)
    for endpoint in onward_endpoints(call.request.task):
        state.peers.prepare(origin, endpoint)
    task, touched = prepare_task(state, call.session, state.seats[call.stream], call.request)
    call.session.streams[call.stream].tasks.add(call.request.digest, task, touched)
    return task


def _run(state: WorkerState, call: Call, task: PreparedTask) -> memoryview:
    """Run a task, send its results onward, and return those that are read."""
    request, stream = call.request, state.seats[call.stream].stream
    try:
        _check_tickets(request.receive_tickets, len(task.receives), "receive")
        _check_tickets(request.onward_tickets, len(task.onward), "onward")
        received = state.mailbox.take(request.receive_tickets) if request.receive_tickets else ()
        run_task(task, stream, call.payload, received)
        results = read_places(task.reads, task.nbytes_out)
        onward = [read_places([target.place], target.place.nbytes) for target in task.onward]
    except Exception as error:
        _give_up(state, call, error)
        raise
    if onward:
        origin = _origin(call)
        for target, ticket, data in zip(task.onward, request.onward_tickets, onward, strict=True):
            state.peers.push(origin, target.endpoint, ticket, data)
    return results


def _check_tickets(tickets: list[bytes], count: int, kind: str) -> None:
    if len(tickets) != count:
        raise GraphError(f"the task needs {count} {kind} tickets and {len(tickets)} came")
    for ticket in tickets:
        check_ticket(ticket)


def _give_up(state: WorkerState, call: Call, error: Exception) -> None:
    """Tell all who wait for the results of a task that failed."""
    device = state.seats[call.stream].device.info.name
    _skipped(state, call, encode_error(error, worker=state.name, device=device, command=call.command.name))


def _fail_onward(state: WorkerState, call: Call, failure: Failure) -> None:
    if not call.request.onward_tickets:
        return
    origin = _origin(call)
    for endpoint, ticket in zip(_endpoints(call), call.request.onward_tickets, strict=False):
        state.peers.fail(origin, endpoint, ticket, failure)


def _endpoints(call: Call) -> list[str]:
    task = call.session.streams[call.stream].tasks.find(call.request.digest)
    if task is not None:
        return [target.endpoint for target in task.onward]
    try:
        return onward_endpoints(call.request.task)
    except RpcBackendError:
        return []  # malformed: its own error is told to the client


def _origin(call: Call) -> Origin:
    return Origin(call.session, call.link, call.stream, call.event.sequence)
