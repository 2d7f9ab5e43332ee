"""Queued work with real workers: chains of tasks, forgotten tasks, deaths, several threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack

import numpy as np
import pytest

from rpc_backend.client import Connection, connect
from rpc_backend.errors import DeadlineError, RpcBackendError, WorkerLostError
from rpc_backend.graph import Graph, build, element_type
from rpc_backend.interfaces import Device, Onward, TaskRun
from rpc_backend.protocol import MINOR
from rpc_backend.settings import Settings
from rpc_backend.testing.workers import WorkerProcess
from rpc_backend.worker.config import WorkerConfig

F32 = element_type("F32")
WAIT_S = 20.0
TASKS_KEPT = WorkerConfig(()).graphs_per_stream


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Workers and connections of a test; all end with it."""
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, device: str = "reference", **settings: object) -> tuple[WorkerProcess, Connection]:
    worker = stack.enter_context(WorkerProcess(device))
    return worker, stack.enter_context(connect(worker.endpoint, Settings(**settings)))


class Doubler:
    """A task `y = x + x` of `n` elements that writes or receives `x`, and reads `y` or sends it onward."""

    def __init__(self, device: Device, n: int = 64, *, receives: bool = False, to: Device | None = None) -> None:
        self.stream = device.create_stream()
        x = build.leaf(F32, [n])
        y = build.add(x, x)
        x.buffer = y.buffer = device.alloc_buffer(8 * n)
        y.offset = 4 * n
        self.n = n
        self.task = device.prepare_task(
            Graph.of(y),
            writes=[] if receives else [x],
            receives=[x] if receives else [],
            reads=[y] if to is None else [],
            onward=[] if to is None else [Onward(y, to)],
        )

    def submit(self, value: float | None, ticket: bytes = b"", to: bytes = b"") -> Future[list[memoryview]]:
        values = () if value is None else (memoryview(np.full(self.n, value, np.float32)),)
        run = TaskRun(values, (ticket,) if ticket else (), (to,) if to else ())
        return self.stream.submit(self.task, run)


def value_of(future: Future[list[memoryview]]) -> float:
    return float(np.frombuffer(future.result(WAIT_S)[0], np.float32)[-1])


@pytest.mark.parametrize("minor", [1, 2, 4])
def test_a_chain_through_the_host_with_many_steps_under_way(stack, minor):
    """Each answer is passed on by the thread that brings it; 200 steps, up to 8 at once, in order per stage."""
    stages = [Doubler(start(stack, proto_minor=minor)[1].devices()[0]) for _ in range(3)]
    room = threading.Semaphore(8)
    results: list[float] = []
    done = threading.Event()

    def go_on(future: Future[list[memoryview]], stage: int) -> None:
        value = float(np.frombuffer(future.result()[0], np.float32)[0])
        if stage < len(stages):
            stages[stage].submit(value).add_done_callback(lambda each: go_on(each, stage + 1))
            return
        results.append(value)
        room.release()
        if len(results) == 200:
            done.set()

    for n in range(200):
        assert room.acquire(timeout=WAIT_S)
        stages[0].submit(n).add_done_callback(lambda each: go_on(each, 1))
    assert done.wait(WAIT_S)
    assert results == [8 * n for n in range(200)]
    for stage in stages:
        stage.stream.synchronize()


def test_a_chain_from_worker_to_worker_with_forgotten_tasks(stack):
    """More tasks than a worker keeps, so that whole runs are refused and sent again, on both sides."""
    near, far = (start(stack)[1] for _ in range(2))
    source, target = near.devices()[0], far.devices()[0]
    assert source.can_send_to(target)
    tasks = TASKS_KEPT + 6
    pairs = [(Doubler(source, n, to=target), Doubler(target, n, receives=True)) for n in range(1, tasks + 1)]
    futures = []
    for round_ in range(3):
        for sender, receiver in pairs:
            ticket = os.urandom(16)
            assert sender.submit(round_ + 1, to=ticket).exception(WAIT_S) is None
            futures.append(receiver.submit(None, ticket))
    assert [value_of(future) for future in futures] == [4.0] * tasks + [8.0] * tasks + [12.0] * tasks
    assert near.counters.snapshot()["SUBMIT_ONWARD"].calls > 3 * tasks
    assert far.counters.snapshot()["SUBMIT"].calls > 3 * tasks


@pytest.mark.parametrize("minor", [1, MINOR])
def test_forgotten_tasks_with_several_threads(stack, minor):
    """Four threads, each with its own tasks and plain commands, on one device."""
    connection = start(stack, proto_minor=minor)[1]
    device = connection.devices()[0]
    each = TASKS_KEPT // 4 + 4
    stages = [[Doubler(device, each * thread + n + 1) for n in range(each)] for thread in range(4)]
    wrong: list[object] = []

    def work(mine: list[Doubler], base: int) -> None:
        try:
            for n in range(4):
                futures = [stage.submit(base + n) for stage in mine]
                out = np.empty(mine[0].n, np.float32)
                mine[0].stream.get_tensor_async(mine[0].task.reads[0], memoryview(out))
                mine[0].stream.synchronize()
                values = [value_of(future) for future in futures]
                if values != [2.0 * (base + n)] * len(mine) or out[-1] != 2 * (base + n):
                    wrong.append((values, out))
        except RpcBackendError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(mine, 100 * n)) for n, mine in enumerate(stages)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []
    counts = connection.counters.snapshot()
    n_runs = 4 * 4 * each
    if minor == 1:
        refused = counts["GRAPH_COMPUTE"].calls - len(stages) * each
        assert 0 < refused <= counts["GRAPH_RECOMPUTE"].calls == n_runs - len(stages) * each
    else:
        assert counts["SUBMIT"].calls > n_runs


def test_a_killed_worker_fails_what_is_under_way_and_tells_who_watches(stack):
    worker, connection = start(stack, "reference:delay_ms=50")
    stage = Doubler(connection.devices()[0])
    told: list[Exception] = []
    stage.stream.on_failure(told.append)
    futures = [stage.submit(n) for n in range(5)]
    assert value_of(futures[0]) == 0
    worker.kill()
    errors = [future.exception(WAIT_S) for future in futures[1:]]
    assert isinstance(errors[-1], WorkerLostError)
    assert errors[-1].context.worker == worker.endpoint
    assert [type(error) for error in told] == [WorkerLostError]


def test_a_stopped_worker_is_noticed_although_nobody_waits(stack):
    worker, connection = start(stack, heartbeat_timeout_ms=500)
    stage = Doubler(connection.devices()[0])
    value_of(stage.submit(1))
    worker.pause()
    started = time.monotonic()
    assert isinstance(stage.submit(2).exception(5), WorkerLostError)
    assert time.monotonic() - started < 2


def test_a_run_that_takes_too_long_fails_although_nobody_waits(stack):
    _, connection = start(stack, "reference:delay_ms=1500", heartbeat_timeout_ms=500, command_timeout_ms=500)
    stage = Doubler(connection.devices()[0])
    error = stage.submit(1).exception(5)
    assert isinstance(error, DeadlineError)
    assert error.context.command == "SUBMIT"


def test_whoever_waits_for_a_killed_worker_is_freed_by_dropping_the_ticket(stack):
    worker, near = start(stack, "reference:delay_ms=10000")
    far = start(stack)[1].devices()[0]
    sender, receiver = Doubler(near.devices()[0], to=far), Doubler(far, receives=True)
    ticket = os.urandom(16)
    sender.stream.on_failure(lambda error: far.drop_tickets([ticket], str(error)))
    sender.submit(1, to=ticket)
    waiting = receiver.submit(None, ticket)
    time.sleep(0.3)
    assert not waiting.done()
    worker.kill()
    error = waiting.exception(WAIT_S)
    assert isinstance(error, WorkerLostError)
    assert worker.endpoint in str(error)


def test_counts_are_printed_by_switch(stack, capfd):
    worker, connection = start(stack, stats=True, stats_ms=50)
    stage = Doubler(connection.devices()[0])
    for _ in range(3):
        value_of(stage.submit(1))
        time.sleep(0.1)
    connection.close()
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("zmq-rpc stats ")]
    assert len(lines) >= 2
    assert all(worker.endpoint in line for line in lines)
    totals = [int(line.split("SUBMIT ")[1].split(" ")[0]) for line in lines if "SUBMIT" in line]
    assert sum(totals) == 3


def test_threads_of_a_connection_end_with_it(stack):
    worker, connection = start(stack)

    def running() -> list[str]:
        return [thread.name for thread in threading.enumerate() if worker.endpoint in thread.name]

    assert f"watch {worker.endpoint}" in running()
    connection.close()
    deadline_s = time.monotonic() + 2
    while left := running():
        assert time.monotonic() < deadline_s, left
        time.sleep(0.02)


def test_uploads_of_several_threads_beside_runs_keep_to_their_windows(stack):
    """Every upload waits for room while the thread that brings answers finishes the same work."""
    worker = stack.enter_context(WorkerProcess("reference", max_queued_nbytes=64_000))
    device = stack.enter_context(connect(worker.endpoint, Settings())).devices()[0]
    stages = [Doubler(device, 1024) for _ in range(3)]
    failed: list[BaseException] = []

    def work(stage: Doubler) -> None:
        try:
            buffer = device.alloc_buffer(4096)
            for n in range(150):
                buffer.write(0, memoryview(bytes([n]) * 4096))
                future = stage.submit(n) if n % 5 == 0 else None
                buffer.write(0, memoryview(bytes([n]) * 4096))
                assert future is None or value_of(future) == 2 * n
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(stage,)) for stage in stages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failed == []
