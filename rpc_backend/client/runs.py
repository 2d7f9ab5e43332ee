"""Runs of tasks and graphs, as work in a queue.

Belongs here: what one run sends and what its answers mean. Must not be here: order, and what happens after a
refusal (`queue`).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from rpc_backend.client.dispatcher import Pending
from rpc_backend.client.plan import Content, RemotePlan
from rpc_backend.client.reads import Reading, ReadLimits, pieces_of
from rpc_backend.client.task import RemoteTask
from rpc_backend.client.work import Wire, Work
from rpc_backend.errors import ErrorContext, RemoteProtocolError
from rpc_backend.interfaces import TaskRun
from rpc_backend.protocol.commands import GRAPH_COMPUTE, GRAPH_RECOMPUTE, SUBMIT, SUBMIT_ONWARD, SYNCHRONIZE
from rpc_backend.protocol.records import Empty, GraphCompute, GraphRecompute, Result, Submit

RunFuture = Future[list[memoryview]]

_HEADER_NBYTES = 512


class TaskWork(Work):
    """A run of a task in one message with an answer."""

    is_run = True
    takes_error = True

    def __init__(self, task: RemoteTask, content: Content, run: TaskRun) -> None:
        super().__init__()
        self.future: RunFuture = Future()
        self.future.set_running_or_notify_cancel()  # what was sent cannot be taken back
        self._task = task
        self._content = content
        self._payload = b"".join(run.values)
        self._expected = [(item.target, ticket) for item, ticket in zip(task.onward, run.onward_tickets, strict=True)]
        self._tickets = (list(run.receive_tickets), list(run.onward_tickets))
        self._is_again = False
        self._is_resuming = False
        self._results: list[memoryview] = []
        self.nbytes = self._message_nbytes()

    def send(self, wire: Wire) -> Sequence[Pending[Result]]:
        pending = wire.submit(SUBMIT, self._request(wire), self._payload)
        if self._expected:
            wire.expect(pending.sequence, self._expected)
        return (pending,)

    def send_again(self) -> None:
        super().send_again()
        self._is_again = True
        self._content.was_sent = False
        self.nbytes = self._message_nbytes()

    @property
    def is_refused(self) -> bool:
        if self._is_resuming:
            return False
        future = self.answers[0].future
        return future.done() and future.exception() is None and not future.result().reply.result

    def take_answers(self) -> None:
        answer = self.answers[0].future.result()
        if not answer.reply.result:
            raise _refused_for_good(self.answers[0].command.name)
        sizes, payload, start = self._task.read_nbytes, answer.payload, 0
        if payload.nbytes != sum(sizes):
            text = f"{sum(sizes)} bytes of results were due and {payload.nbytes} came"
            raise RemoteProtocolError(text, context=ErrorContext(command=SUBMIT.name))
        for nbytes in sizes:
            self._results.append(payload[start : start + nbytes])
            start += nbytes

    def settle(self) -> None:
        if self.error is None:
            self.future.set_result(self._results)
        else:
            self.future.set_exception(self.error.located(device=self._task.plan.device.info.name))

    def _request(self, wire: Wire) -> Submit:
        self._is_resuming, wire.is_refused = wire.is_refused, False
        content = self._content
        is_whole = self._is_again or self._is_resuming or not content.was_sent
        content.was_sent = True
        return Submit(content.digest, content.record if is_whole else [], *self._tickets, self._is_resuming)

    def _message_nbytes(self) -> int:
        return _HEADER_NBYTES + len(self._payload) + self._content.pending_nbytes


class OnwardWork(TaskWork):
    """A run of a task whose results all go onward: not answered. Its future is done when it is sent."""

    tells_when_sent = True

    def send(self, wire: Wire) -> Sequence[Pending[Result]]:
        self.sequence, _ = wire.post(SUBMIT_ONWARD, self._request(wire), self._payload)
        wire.expect(self.sequence, self._expected)
        self.takes_error = False  # from now on there is no future to give it to
        return ()

    def was_sent(self) -> None:
        if not self.future.done():  # it may be sent twice
            self.future.set_result([])

    @property
    def is_refused(self) -> bool:
        return self.was_refused and not self._is_resuming

    def take_answers(self) -> None:
        if self.was_refused:
            raise _refused_for_good(SUBMIT_ONWARD.name)

    def settle(self) -> None:
        if self.takes_error:
            super().settle()


class GraphWork(Work):
    """A graph computed with single commands; with a future, its results are read and errors go there.

    The worker is asked by the digest if it should know the graph. If it does not, all is sent again; so nothing is sent
    behind it before it said so.
    """

    def __init__(self, plan: RemotePlan) -> None:
        super().__init__()
        self._plan = plan
        self._is_asking = False
        self.nbytes = plan.content.pending_nbytes

    def send(self, wire: Wire) -> list[Pending[Any]]:
        content = self._plan.content
        self._is_asking, content.was_sent = content.was_sent, True
        if self._is_asking:
            return [wire.submit(GRAPH_RECOMPUTE, GraphRecompute(wire.stream, content.digest))]
        wire.post(GRAPH_COMPUTE, GraphCompute(wire.stream, content.record))
        return []

    def send_again(self) -> None:
        super().send_again()
        self._plan.content.was_sent = False
        self.nbytes = self._plan.content.pending_nbytes

    @property
    def is_question(self) -> bool:
        return self._is_asking and not self.answers[0].future.done()

    @property
    def is_refused(self) -> bool:
        if not self._is_asking or self.is_question:
            return False
        future = self.answers[0].future
        return future.exception() is None and not future.result().reply.result


class GraphTaskWork(GraphWork):
    """A run of a task whose inputs were written before, with single commands."""

    takes_error = True

    def __init__(self, task: RemoteTask, limits: ReadLimits) -> None:
        super().__init__(task.plan)
        self.future: RunFuture = Future()
        self.future.set_running_or_notify_cancel()
        self._task = task
        self._results = [memoryview(bytearray(nbytes)) for nbytes in task.read_nbytes]
        self._reading = Reading(
            [
                piece
                for record, result in zip(task.read_records, self._results, strict=True)
                for piece in pieces_of(record, result, 0, limits.max_nbytes)
            ],
            limits,
        )

    def send(self, wire: Wire) -> list[Pending[Any]]:
        answers = super().send(wire)
        return answers + (self._reading.send(wire) or [wire.submit(SYNCHRONIZE, Empty())])

    def take_answers(self) -> None:
        super().take_answers()
        self._reading.fill()

    def settle(self) -> None:
        if self.error is None:
            self.future.set_result(self._results)
        else:
            self.future.set_exception(self.error.located(device=self._task.plan.device.info.name))


def _refused_for_good(command: str) -> RemoteProtocolError:
    return RemoteProtocolError("the worker refused a task that was sent whole", context=ErrorContext(command=command))
