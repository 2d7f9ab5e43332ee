"""A run of a task as single commands, for workers older than SUBMIT and for tasks too large for a message.

Belongs here: which works make such a run. Must not be here: the works themselves (`runs`, `copies`, `transfers`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from rpc_backend.client.copies import CopyToWork, ReadyWork, Way, land_works
from rpc_backend.client.runs import GraphTaskWork, GraphWork, RunFuture
from rpc_backend.client.task import RemoteTask
from rpc_backend.client.transfers import Transfers, WriteWork
from rpc_backend.client.work import Work
from rpc_backend.errors import GraphError
from rpc_backend.interfaces import TaskRun

if TYPE_CHECKING:
    from rpc_backend.client.device import RemoteDevice


def single_works(
    device: RemoteDevice, transfers: Transfers, task: RemoteTask, run: TaskRun
) -> tuple[list[Work], RunFuture]:
    """Return the works of a run in order, and the future of its results.

    Of a task without reads but with results sent onward it is done when they are there.
    """
    works: list[Work] = []
    landings = [device.landings.at(ticket) for ticket in run.receive_tickets]
    if landings:
        works.append(ReadyWork(landings, task.receive_records))
    works += _writes(transfers, task, run)
    for landing, record, tensor in zip(landings, task.receive_records, task.receives, strict=True):
        works += land_works(transfers, record, tensor.nbytes, landing)
    copies = list(_copies(device, transfers, task, run))
    if task.reads or not copies:
        single = GraphTaskWork(task, transfers.read_limits)
        return [*works, single, *copies], single.future
    return [*works, GraphWork(task.plan), *copies], _all_done([copy.done for copy in copies])


def _writes(transfers: Transfers, task: RemoteTask, run: TaskRun) -> Iterator[WriteWork]:
    for record, value in zip(task.write_records, run.values, strict=True):
        data: Future[memoryview] = Future()
        data.set_result(value)
        yield from transfers.writes(record, value.nbytes, data)


def _copies(device: RemoteDevice, transfers: Transfers, task: RemoteTask, run: TaskRun) -> Iterator[CopyToWork]:
    for item, record, ticket in zip(task.onward, task.onward_records, run.onward_tickets, strict=True):
        target = item.target
        if not isinstance(target, type(device)):
            raise GraphError(f"{device.info.name} cannot send results to {target.info.name}")
        way = Way(device.peers, target.dispatcher, target.index)
        yield CopyToWork(record, item.tensor.nbytes, target.landings.at(ticket), way, transfers.read_limits)


def _all_done(parts: Sequence[Future[None]]) -> RunFuture:
    """Return a future that is done when all parts are, or fails with the first that does."""
    whole: RunFuture = Future()
    whole.set_running_or_notify_cancel()
    lock, left = threading.Lock(), len(parts)

    def ended(part: Future[None]) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left == 0
        if is_last:
            error = next((error for each in parts if (error := each.exception()) is not None), None)
            if error is None:
                whole.set_result([])
            else:
                whole.set_exception(error)

    for part in parts:
        part.add_done_callback(ended)
    return whole
