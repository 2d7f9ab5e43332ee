"""Runs of tasks: one message, order, refusals, windows, errors; and the same with older workers."""

from __future__ import annotations

import gc
import os
import weakref

import numpy as np
import pytest

from rpc_backend import fabric
from rpc_backend.errors import ComputeError, DeadlineError, HandleError, RemoteProtocolError, WorkerLostError
from rpc_backend.graph import Graph, build, element_type
from rpc_backend.interfaces import Onward, TaskRun
from rpc_backend.settings import Settings
from rpc_backend.testing.devices import FailingDevice, NullDevice
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.testing.inline_workers import InlineWorkers
from rpc_backend.worker import WorkerConfig

F32 = element_type("F32")
MINORS = [1, 2, 3, 4]


class Stage:
    """A task of a device that writes two tensors and reads them again; `n` makes it another task."""

    def __init__(self, device, n: int = 16, *, onward=()) -> None:
        self.device = device
        self.stream = device.create_stream()
        self.buffer = device.alloc_buffer(3 * 4 * n)
        self.x, self.z = build.leaf(F32, [n]), build.leaf(F32, [n])
        self.y = build.add(self.x, self.z)
        for index, tensor in enumerate((self.x, self.z, self.y)):
            tensor.buffer, tensor.offset = self.buffer, 4 * n * index
        self.task = device.prepare_task(
            Graph.of(self.y),
            writes=[self.x, self.z],
            reads=[self.z, self.x],
            onward=[Onward(self.x, d) for d in onward],
        )

    def submit(self, value: float):
        values = [np.full(self.x.ne[0], value + index, np.float32) for index in (0.0, 0.5)]
        return self.stream.submit(self.task, TaskRun(tuple(memoryview(each) for each in values)))

    def values(self, future) -> tuple[float, float]:
        """The values of `x` and `z` that a run read."""
        z, x = (np.frombuffer(result, np.float32) for result in future.result(0))
        assert len(x) == len(z) == self.x.ne[0]
        return float(x[-1]), float(z[-1])


def calls(connection, *names: str) -> list[int]:
    counts = connection.counters.snapshot()
    return [counts[name].calls if name in counts else 0 for name in names]


def opened(worker, **settings):
    return worker.connect(Settings(**settings))


@pytest.fixture(params=MINORS)
def any_connection(request, worker):
    return opened(worker, proto_minor=request.param)


def test_a_run_is_one_message_with_one_answer(connection):
    stage = Stage(connection.devices()[0])
    before = connection.counters.snapshot()
    assert [stage.values(stage.submit(n)) for n in (1, 2)] == [(1.0, 1.5), (2.0, 2.5)]
    after = connection.counters.snapshot()
    changed = {name for name in after if name not in before or after[name] != before[name]}
    assert changed == {"SUBMIT"}
    assert after["SUBMIT"].calls == 2


def test_a_task_is_sent_whole_once(worker, connection):
    stage = Stage(connection.devices()[0])
    worker.network.sent.to_worker.clear()
    for n in range(3):
        stage.submit(n)
    headers = [len(frames[0]) for frames in worker.network.sent.to_worker]
    assert headers[0] > 5 * headers[1]
    assert headers[1] == headers[2] < 100


def test_results_of_any_worker(any_connection):
    stage = Stage(any_connection.devices()[0])
    futures = [stage.submit(n) for n in range(5)]
    assert [stage.values(future) for future in futures] == [(n, n + 0.5) for n in range(5)]
    stage.stream.synchronize()


def test_older_workers_are_told_with_single_commands(worker):
    names = ("SUBMIT", "SET_TENSOR", "GRAPH_COMPUTE", "GRAPH_RECOMPUTE", "GET_TENSORS", "GET_TENSOR")
    expected = {1: [0, 6, 1, 2, 0, 6], 2: [0, 6, 1, 2, 3, 0], 3: [0, 6, 1, 2, 3, 0], 4: [3, 0, 0, 0, 0, 0]}
    for minor in MINORS:
        connection = opened(worker, proto_minor=minor)
        stage = Stage(connection.devices()[0])
        for n in range(3):
            stage.submit(n)
        assert calls(connection, *names) == expected[minor]


def test_single_reads_by_switch(worker):
    connection = opened(worker, proto_minor=2, no_batched_get=True)
    stage = Stage(connection.devices()[0])
    assert stage.values(stage.submit(7)) == (7.0, 7.5)
    assert calls(connection, "GET_TENSORS", "GET_TENSOR") == [0, 2]


def test_without_asynchronous_work_a_run_is_done_before_the_call_returns(worker, backends):
    connection = opened(worker, no_async_copy=True)
    stage = Stage(connection.devices()[0])
    future = stage.submit(3)
    assert future.done()
    assert stage.values(future) == (3.0, 3.5)
    assert calls(connection, "SUBMIT", "SET_TENSOR", "GET_TENSOR") == [0, 2, 2]
    backends[0].fail_on = {backends[0].n_runs + 1}
    assert isinstance(stage.submit(4).exception(0), ComputeError)


def test_a_task_without_reads_is_done_when_the_worker_has_finished(any_connection, worker):
    stage = Stage(any_connection.devices()[0])
    task = stage.device.prepare_task(Graph.of(stage.y), writes=[stage.x])
    worker.lanes[0].held = True
    future = stage.stream.submit(task, TaskRun((memoryview(bytes(64)),)))
    assert not future.done()
    worker.lanes[0].release()
    assert future.result(0) == []


# Nothing waits


def test_asynchronous_work_waits_for_nothing_and_opens_no_connection(any_connection, worker, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("an asynchronous call connects or waits")

    stages = [Stage(device) for device in any_connection.devices()]
    for stage in stages:
        stage.submit(0).result(0)
    worker.network.hold()
    for name in ("wait", "wait_answered", "wait_future", "wait_sent"):
        monkeypatch.setattr(any_connection.dispatcher, name, refuse)
    monkeypatch.setattr(fabric, "connect", refuse)
    futures = []
    outs = [bytearray(64) for _ in stages]
    for n in range(4):
        futures += [stage.submit(n) for stage in stages]
    for stage, out in zip(stages, outs, strict=True):
        stage.stream.compute(stage.task.plan)
        stage.stream.get_tensor_async(stage.x, memoryview(out))
        futures.append(stage.stream.fetch_tensor(stage.x))
        event = stage.device.create_event()
        stage.stream.record(event)
        stage.stream.wait(event)
        stage.stream.set_tensor_when(stage.x, futures[-1])
        futures.append(event.passed)
        event.close()
    assert not any(future.done() for future in futures)
    worker.network.release()
    assert all(future.exception(0) is None for future in futures)
    assert [bytes(out) for out in outs] == [np.full(16, 3, np.float32).tobytes()] * 2


def test_callbacks_may_submit(any_connection):
    first, second = (Stage(device) for device in any_connection.devices())
    seen = []

    def go_on(future) -> None:
        seen.append(first.values(future))
        second.submit(seen[-1][0] + 1).add_done_callback(lambda done: seen.append(second.values(done)))

    for n in (1, 5):
        first.submit(n).add_done_callback(go_on)
    assert seen == [(1.0, 1.5), (2.0, 2.5), (5.0, 5.5), (6.0, 6.5)]


@pytest.mark.parametrize("minor", MINORS)
def test_what_is_unanswered_is_bounded_and_the_rest_goes_out_later(minor):
    config = WorkerConfig((), max_queued_nbytes=40_000)
    worker = InlineWorker([NullDevice()], config)
    connection = opened(worker, proto_minor=minor)
    stage = Stage(connection.devices()[0], 256)
    worker.network.hold()
    before = worker.network.n_waiting
    futures = [stage.submit(n) for n in range(50)]
    assert worker.network.n_waiting - before < 30
    worker.network.release()
    assert [stage.values(future)[0] for future in futures] == list(range(50))


def test_a_run_larger_than_the_window_goes_alone():
    config = WorkerConfig((), max_queued_nbytes=40_000)
    connection = InlineWorker([NullDevice()], config).connect()
    stage = Stage(connection.devices()[0], 2400)
    futures = [stage.submit(n) for n in range(3)]
    assert [stage.values(future)[0] for future in futures] == [0, 1, 2]
    assert calls(connection, "SUBMIT") == [3]


# Order with other commands


def test_commands_around_a_run_keep_their_place(any_connection):
    stage = Stage(any_connection.devices()[0])
    out = bytearray(64)
    stage.submit(1)
    stage.stream.set_tensor(stage.x, memoryview(np.full(16, 9, np.float32)))
    stage.stream.get_tensor_async(stage.x, memoryview(out))
    later = stage.submit(2)
    stage.stream.compute(stage.task.plan)
    stage.stream.synchronize()
    assert np.frombuffer(out, np.float32)[0] == 9
    assert stage.values(later) == (2.0, 2.5)


# Refusals


def hold(worker, what: str) -> None:
    if what == "network":
        worker.network.hold()
    elif what == "device":
        worker.lanes[0].held = True


def release(worker) -> None:
    worker.network.release()
    worker.lanes[0].release()


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("held", ["", "network", "device"])
@pytest.mark.parametrize("n_stages", [1, 2, 3])
def test_tasks_that_the_worker_forgot_are_sent_again_in_their_order(minor, held, n_stages):
    backend = FailingDevice(NullDevice())
    worker = InlineWorker([backend], WorkerConfig((), graphs_per_stream=1))
    connection = opened(worker, proto_minor=minor)
    device = connection.devices()[0]
    *stages, other = (Stage(device, 16 * (n + 1)) for n in range(n_stages + 1))
    for stage in (*stages, other):
        stage.submit(0).result(0)
    before = calls(connection, "SUBMIT", "GRAPH_COMPUTE", "GRAPH_RECOMPUTE")
    hold(worker, held)
    order: list[tuple[int, int]] = []
    for n in range(6):
        for index, stage in enumerate(stages):
            stage.submit(n).add_done_callback(lambda _, n=n, index=index: order.append((n, index)))
    out = bytearray(64)
    stages[0].stream.get_tensor_async(stages[0].x, memoryview(out))
    release(worker)
    stages[0].stream.synchronize()
    n_runs = 6 * n_stages
    assert order == [(n, index) for n in range(6) for index in range(n_stages)]
    assert backend.n_runs == n_stages + 1 + n_runs
    assert np.frombuffer(out, np.float32)[0] == 5
    after = calls(connection, "SUBMIT", "GRAPH_COMPUTE", "GRAPH_RECOMPUTE")
    sent = [now - earlier for now, earlier in zip(after, before, strict=True)]
    n_refused = 1 if n_stages == 1 else n_runs
    assert sent[1:] == ([0, 0] if minor >= 4 else [n_refused, n_runs])
    assert sent[0] <= (2 * n_runs if minor >= 4 else 0)


def test_a_refusal_leaves_the_futures_as_they_are_and_nothing_overtakes():
    worker = InlineWorker([NullDevice()], WorkerConfig((), graphs_per_stream=1))
    connection = worker.connect()
    device = connection.devices()[0]
    stage, other = Stage(device), Stage(device, 32)
    stage.submit(0)
    other.submit(0)
    worker.network.hold()
    futures = [stage.submit(1), other.submit(2), stage.submit(3)]
    later = stage.stream.fetch_tensor(stage.x)
    worker.network.deliver(1)  # the first run comes and is refused
    worker.network.deliver(1)
    assert not any(future.done() for future in futures)
    worker.network.release()
    assert [stage.values(futures[0]), other.values(futures[1]), stage.values(futures[2])] == [
        (1.0, 1.5), (2.0, 2.5), (3.0, 3.5),
    ]  # fmt: skip
    assert np.frombuffer(later.result(0), np.float32)[0] == 3


def onward_pair(**config):
    """Two devices of a worker: tasks of the first send to a task of the second, without results of their own."""
    backends = [FailingDevice(NullDevice(name)) for name in ("zero", "one")]
    worker = InlineWorker(backends, WorkerConfig((), **config))
    connection = worker.connect()
    near, far = connection.devices()
    return worker, connection, backends, OnwardStage(near, far), OnwardStage(near, far, 32)


class OnwardStage:
    """A task that only sends onward, and the task that receives."""

    def __init__(self, near, far, n: int = 16) -> None:
        self.near, self.far = Stage(near, n), Stage(far, n)
        self.sending = near.prepare_task(Graph.of(self.near.y), writes=[self.near.x], onward=[Onward(self.near.x, far)])
        self.receiving = far.prepare_task(Graph.of(self.far.y), receives=[self.far.x], reads=[self.far.x])

    def submit(self, value: float):
        ticket = os.urandom(16)
        data = memoryview(np.full(self.near.x.ne[0], value, np.float32))
        sent = self.near.stream.submit(self.sending, TaskRun((data,), onward_tickets=(ticket,)))
        return sent, self.far.stream.submit(self.receiving, TaskRun(receive_tickets=(ticket,)))


def first(future) -> float:
    return float(np.frombuffer(future.result(0)[0], np.float32)[0])


def test_a_run_without_results_of_its_own_is_not_answered_and_its_future_is_done_when_sent():
    worker, connection, _, stage, _ = onward_pair()
    worker.network.hold()
    runs = [stage.submit(n) for n in range(3)]
    assert [sent.result(0) for sent, _ in runs] == [[], [], []]
    worker.network.release()
    assert [first(received) for _, received in runs] == [0, 1, 2]
    assert calls(connection, "SUBMIT", "SUBMIT_ONWARD") == [3, 3]
    assert calls(connection, "SYNCHRONIZE") == [0]


@pytest.mark.parametrize("is_held", [False, True])
def test_onward_runs_that_were_refused_are_sent_again_in_their_order(is_held):
    worker, _, backends, stage, other = onward_pair(graphs_per_stream=1)
    for each in (stage, other):
        assert first(each.submit(9)[1]) == 9
    if is_held:
        worker.network.hold()
    received = [each.submit(n)[1] for n in range(4) for each in (stage, other)]
    worker.network.release()
    assert [first(each) for each in received] == [0, 0, 1, 1, 2, 2, 3, 3]
    stage.near.stream.synchronize()
    assert [backend.n_runs for backend in backends] == [10, 10]


def test_a_failed_onward_run_fails_whoever_waits_for_it_and_no_other():
    _, _, backends, stage, _ = onward_pair()
    failures = []
    stage.near.stream.on_failure(failures.append)
    backends[0].fail_on = {2}
    received = [stage.submit(n)[1] for n in range(3)]
    assert first(received[0]) == 0
    assert isinstance(received[1].exception(0), ComputeError)
    assert first(received[2]) == 2
    assert failures == []


def test_results_that_cannot_be_sent_are_told_to_whoever_waits():
    workers = InlineWorkers([[NullDevice("near")], [NullDevice("far")]])
    stage = OnwardStage(workers.connect(0).devices()[0], workers.connect(1).devices()[0])
    assert first(stage.submit(1)[1]) == 1
    workers.refuses = True
    workers.cut_links()
    failures = []
    stage.near.stream.on_failure(failures.append)
    sent, received = stage.submit(1)
    assert sent.result(0) == []
    assert "no worker that knows this client answered there" in str(failures[0])
    assert isinstance(received.exception(0), WorkerLostError)
    assert "no worker that knows this client answered there" in str(received.exception(0))


def test_many_unanswered_runs_are_bounded_by_a_round_trip_now_and_then(monkeypatch):
    monkeypatch.setattr("rpc_backend.client.flight._FENCE_EVERY_COMMANDS", 10)
    _, connection, _, stage, _ = onward_pair()
    for n in range(100):
        stage.submit(n)
    assert calls(connection, "SYNCHRONIZE") == [10]
    assert len(stage.near.stream._queue._flight._works) < 10


# Errors


def test_an_error_goes_to_the_run_that_failed(any_connection, backends):
    backends[0].fail_on = {2}
    stage = Stage(any_connection.devices()[0])
    futures = [stage.submit(n) for n in range(3)]
    error = futures[1].exception(0)
    assert isinstance(error, ComputeError)
    assert (error.context.worker, error.context.device, error.context.op) == ("memory://listener", "zero", "MUL_MAT")
    assert error.context.command
    assert [stage.values(futures[n]) for n in (0, 2)] == [(0, 0.5), (2, 2.5)]
    stage.stream.synchronize()


def test_an_error_of_earlier_work_goes_to_the_next_run(any_connection, backends):
    stage = Stage(any_connection.devices()[0])
    backends[0].fail_on = {1}
    stage.stream.compute(stage.task.plan)
    failed, good = stage.submit(1), stage.submit(2)
    assert isinstance(failed.exception(0), ComputeError)
    assert stage.values(good) == (2.0, 2.5)
    stage.stream.synchronize()


def test_a_failure_that_was_noticed_is_raised_once_and_told(worker, connection, backends):
    stage = Stage(connection.devices()[0])
    told = []
    stage.stream.on_failure(told.append)
    backends[0].fail_on = {1, 3}
    stage.stream.compute(stage.task.plan)
    assert [type(error) for error in told] == [ComputeError]
    assert isinstance(stage.submit(1).exception(0), ComputeError)
    assert stage.values(stage.submit(2)) == (2.0, 2.5)
    stage.stream.compute(stage.task.plan)
    with pytest.raises(ComputeError):
        stage.stream.synchronize()
    stage.stream.synchronize()
    assert len(told) == 2
    stage.stream.close()
    backends[0].fail_on = {4}
    stage.stream.compute(stage.task.plan)
    assert len(told) == 2


def test_a_task_over_a_freed_buffer_fails(any_connection, backends):
    stage = Stage(any_connection.devices()[0])
    stage.submit(1).result(0)
    stage.device.alloc_buffer(10)
    n_runs = backends[0].n_runs
    future_buffer = stage.buffer
    future_buffer.close()
    assert isinstance(stage.submit(2).exception(0), HandleError)
    assert backends[0].n_runs == n_runs


def test_a_lost_worker_fails_all_that_is_open_or_waits(any_connection, worker):
    stage = Stage(any_connection.devices()[0])
    told = []
    stage.stream.on_failure(told.append)
    stage.submit(0).result(0)
    worker.network.hold()
    futures = [stage.submit(n) for n in range(3)]
    stage.stream.compute(stage.task.plan)
    futures.append(stage.stream.fetch_tensor(stage.x))
    event = stage.device.create_event()
    stage.stream.record(event)
    futures.append(event.passed)
    worker.network.cut(any_connection.dispatcher._channel)
    for future in [*futures, stage.submit(9)]:
        assert isinstance(future.exception(0), WorkerLostError)
        assert future.exception(0).context.worker == "inline"
    assert [type(error) for error in told] == [WorkerLostError]
    with pytest.raises(WorkerLostError):
        stage.stream.synchronize()


def test_a_run_that_is_never_answered_has_a_deadline(worker):
    connection = opened(worker, command_timeout_ms=1)
    stage = Stage(connection.devices()[0])
    stage.submit(0).result(0)
    worker.lanes[0].held = True
    future = stage.submit(1)
    while not future.done():
        connection.dispatcher.check()
    error = future.exception(0)
    assert isinstance(error, DeadlineError)
    assert (error.context.worker, error.context.command) == ("inline", "SUBMIT")
    worker.lanes[0].release()
    assert stage.values(stage.submit(2)) == (2.0, 2.5)


def test_a_worker_that_says_nothing_is_lost_although_nobody_waits(worker):
    connection = opened(worker, heartbeat_timeout_ms=100)
    stage = Stage(connection.devices()[0])
    worker.network.hold()
    future = stage.submit(1)
    while not future.done():
        connection.dispatcher.check()
    assert isinstance(future.exception(0), WorkerLostError)
    assert "PING included" in str(future.exception(0))


def test_a_worker_that_refuses_a_whole_task_breaks_the_rules(connection, monkeypatch):
    stage = Stage(connection.devices()[0])
    monkeypatch.setattr("rpc_backend.worker.handlers.tasks._find_task", lambda state, call: None)
    error = stage.submit(1).exception(0)
    assert isinstance(error, RemoteProtocolError)
    assert "sent whole" in str(error)
    monkeypatch.undo()
    assert stage.values(stage.submit(2)) == (2.0, 2.5)


def test_nothing_of_a_run_stays(any_connection):
    stage = Stage(any_connection.devices()[0], 4096)
    gc.collect()
    gc.disable()
    try:
        futures = [stage.submit(n) for n in range(3)]
        assert all(future.done() for future in futures)
        gone = [weakref.ref(future) for future in futures]
        del futures
        assert [each() for each in gone] == [None] * 3
    finally:
        gc.enable()
