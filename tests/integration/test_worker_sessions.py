"""Several clients on one real worker: memory, handles, order, fairness."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from rpc_backend.client import Connection, connect
from rpc_backend.errors import ComputeError, HandleError, LimitError, OutOfMemoryError, PluginLoadError, SessionError
from rpc_backend.graph import Graph, Tensor, build, element_type
from rpc_backend.interfaces import Device, Memory
from rpc_backend.protocol.commands import GET_TENSOR, PING, STATS, SYNCHRONIZE
from rpc_backend.protocol.records import Empty, TensorRange
from rpc_backend.settings import Settings
from rpc_backend.testing.workers import WorkerProcess

F32 = element_type("F32")
MIB = 1 << 20
CAP = 96 * MIB
SETTINGS = Settings(heartbeat_timeout_ms=1000, connect_timeout_ms=5000, command_timeout_ms=20_000)


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    """Two devices of 96 MiB; graphs of the second take 300 ms."""
    with WorkerProcess("reference", "reference:name=slow,delay_ms=300", mem_nbytes=CAP) as running:
        yield running


@pytest.fixture
def connection(worker) -> Iterator[Connection]:
    with connect(worker.endpoint, SETTINGS) as opened:
        yield opened
    wait_until_free(worker)


def wait_until_free(worker: WorkerProcess, timeout_s: float = 2.0) -> None:
    """Nothing of a closed or killed client may stay."""
    deadline = time.monotonic() + timeout_s
    with connect(worker.endpoint, SETTINGS) as watcher:
        while any(device.memory() != Memory(CAP, CAP) for device in watcher.devices()):
            assert time.monotonic() < deadline, "a client left memory behind"
            time.sleep(0.01)


class Doubling:
    """`y = x + x` over a buffer of its own."""

    def __init__(self, device: Device, n: int = 256) -> None:
        self.stream = device.create_stream()
        self.x = build.leaf(F32, [n], "x")
        self.y = build.add(self.x, self.x)
        self.buffer = device.alloc_buffer(8 * n)
        self.x.buffer = self.y.buffer = self.buffer
        self.y.offset = 4 * n
        self.plan = device.compile(Graph.of(self.y))

    def run(self, x: np.ndarray) -> np.ndarray:
        self.stream.set_tensor(self.x, memoryview(x))
        self.stream.compute(self.plan)
        return read(self.stream, self.y)


def read(stream, tensor: Tensor) -> np.ndarray:
    out = np.empty(tensor.n_elements, np.float32)
    stream.get_tensor(tensor, memoryview(out))
    return out


def numbers(seed: int, n: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n, np.float32)


def test_an_idle_client_keeps_nobody_waiting(worker, connection):
    idle = Doubling(connection.devices()[0])
    started = time.monotonic()
    with connect(worker.endpoint, SETTINGS) as other:
        busy = Doubling(other.devices()[0])
        big = other.devices()[0].alloc_buffer(64 * MIB)
        big.write(0, memoryview(bytes(64 * MIB)))
        np.testing.assert_array_equal(busy.run(numbers(1)), 2 * numbers(1))
        asked = time.monotonic()
        other.call(PING, Empty())
        assert time.monotonic() - asked < 1
    assert time.monotonic() - started < 10
    np.testing.assert_array_equal(idle.run(numbers(2)), 2 * numbers(2))


def test_two_contexts_of_one_client_take_turns(connection):
    device = connection.devices()[0]
    contexts = [Doubling(device), Doubling(device)]
    for step in range(100):
        context = contexts[step % 2]
        np.testing.assert_array_equal(context.run(numbers(step)), 2 * numbers(step))


def test_two_threads_of_one_client(connection):
    device = connection.devices()[0]
    failures: list[BaseException] = []

    def work(offset: int) -> None:
        try:
            context = Doubling(device)
            for step in range(20):
                np.testing.assert_array_equal(context.run(numbers(offset + step)), 2 * numbers(offset + step))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failures == []


@pytest.mark.parametrize(
    ("nbytes", "error"),
    [
        (CAP + 1, OutOfMemoryError),
        (1 << 63, LimitError),
        ((1 << 64) - 1, LimitError),
        (-1, LimitError),
    ],
)
def test_sizes_that_cannot_be(connection, nbytes, error):
    device = connection.devices()[0]
    with pytest.raises(error, match=str(nbytes)):
        device.alloc_buffer(nbytes)
    assert device.memory() == Memory(CAP, CAP)
    device.alloc_buffer(0)
    device.alloc_buffer(MIB)
    with pytest.raises(OutOfMemoryError, match=f"{CAP - MIB} of {CAP} are free"):
        device.alloc_buffer(CAP - MIB + 1)
    device.alloc_buffer(CAP - MIB)


def test_a_cap_above_the_machines_memory_is_refused_at_the_start():
    with pytest.raises(PluginLoadError, match=f"cap of {1 << 60} bytes does not fit device reference"):
        WorkerProcess("reference", mem_nbytes=1 << 60)


def test_a_killed_client_leaves_nothing_behind(worker):
    script = (
        "import sys, time; from rpc_backend.client import connect; c = connect(sys.argv[1]); d = c.devices()[0];"
        "held = [d.alloc_buffer(48 * 2**20 // 100) for _ in range(100)]; print('held', flush=True); time.sleep(60)"
    )
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", script, worker.endpoint], stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"held\n"
            with connect(worker.endpoint, SETTINGS) as watcher:
                assert watcher.devices()[0].memory().free_nbytes < CAP // 2 + MIB
            client.kill()
            client.wait(5)
        wait_until_free(worker, timeout_s=SETTINGS.heartbeat_timeout_ms / 1000)


def test_another_clients_buffer_is_out_of_reach(worker, connection):
    mine = Doubling(connection.devices()[0])
    mine.stream.set_tensor(mine.x, memoryview(numbers(1)))
    mine.stream.synchronize()
    with connect(worker.endpoint, SETTINGS) as thief:
        theirs = Doubling(thief.devices()[0])
        theirs.buffer._handle = mine.buffer.handle
        attempts = [
            lambda: read(theirs.stream, theirs.x),
            lambda: theirs.stream.set_tensor(theirs.x, memoryview(bytes(1024))),
            lambda: theirs.stream.compute(thief.devices()[0].compile(Graph.of(theirs.y))),
            lambda: theirs.buffer.fill(0, 2048, 0),
            theirs.buffer.close,
        ]
        for attempt in attempts:
            with pytest.raises(HandleError, match="another session"):  # noqa: PT012 (some raise only when asked)
                attempt()
                theirs.stream.synchronize()
    np.testing.assert_array_equal(read(mine.stream, mine.x), numbers(1))


def test_a_failed_graph_is_told_and_the_next_is_right():
    with (
        WorkerProcess("reference", "reference:name=slow,delay_ms=300,fail_on=2") as own,
        connect(own.endpoint, SETTINGS) as connection,
    ):
        slow = Doubling(connection.devices()[1])
        np.testing.assert_array_equal(slow.run(numbers(0)), 2 * numbers(0))
        with pytest.raises(ComputeError, match="graph 2 fails") as caught:
            slow.run(numbers(1))
        context = caught.value.context
        assert (context.worker, context.device, context.op) == (own.endpoint, "slow", "MUL_MAT")
        np.testing.assert_array_equal(slow.run(numbers(2)), 2 * numbers(2))
        assert own.is_alive


def test_a_long_graph_delays_only_its_own_device(worker, connection):
    slow, fast = Doubling(connection.devices()[1]), Doubling(connection.devices()[0])
    slow.run(numbers(1))
    started = time.monotonic()
    slow.stream.compute(slow.plan)
    assert time.monotonic() - started < 0.15
    connection.call(PING, Empty())
    np.testing.assert_array_equal(fast.run(numbers(2)), 2 * numbers(2))
    with connect(worker.endpoint, SETTINGS) as other:
        assert other.call(STATS, Empty()).sessions == 2
    assert time.monotonic() - started < 0.3
    slow.stream.synchronize()
    assert time.monotonic() - started >= 0.3


def test_clients_take_turns_on_a_busy_device(worker, connection):
    first = Doubling(connection.devices()[1])
    first.run(numbers(0))
    for _ in range(4):
        first.stream.compute(first.plan)
    with connect(worker.endpoint, SETTINGS) as other:
        device = other.devices()[1]
        started = time.monotonic()
        device.alloc_buffer(1024)
        assert time.monotonic() - started < 0.9, "a client waited for the whole queue of another"
    first.stream.synchronize()


def test_a_copy_between_two_devices_of_a_worker_does_not_pass_the_client(connection):
    source, target = Doubling(connection.devices()[0]), Doubling(connection.devices()[1])
    source.stream.set_tensor(source.x, memoryview(numbers(7)))
    assert target.stream.copy_tensor(source.x, target.x)
    assert "GET_TENSOR" not in connection.counters.snapshot()
    np.testing.assert_array_equal(read(target.stream, target.x), numbers(7))


def test_a_graph_over_freed_memory_is_not_run(connection):
    device = connection.devices()[0]
    stale = Doubling(device)
    stale.run(numbers(1))
    stale.buffer.close()
    fresh = Doubling(device)
    fresh.run(numbers(2))
    stale.stream.compute(stale.plan)
    with pytest.raises(HandleError, match="was freed"):
        stale.stream.synchronize()
    np.testing.assert_array_equal(read(fresh.stream, fresh.y), 2 * numbers(2))


def test_a_big_tensor_comes_back_as_it_was_sent(connection):
    device = connection.devices()[0]
    data = np.random.default_rng(3).integers(0, 256, 24 * MIB + 12345, np.uint8)
    buffer = device.alloc_buffer(data.nbytes)
    buffer.write(0, memoryview(data))
    out = np.empty_like(data)
    buffer.read_into(0, memoryview(out))
    np.testing.assert_array_equal(out, data)


def test_data_may_change_as_soon_as_a_write_returns(connection):
    device = connection.devices()[0]
    buffer = device.alloc_buffer(16 * MIB)
    data = bytearray(b"\1" * (4 * MIB))
    for part in range(4):
        data[:] = bytes([part]) * len(data)
        buffer.write(part * 4 * MIB, memoryview(data))
        data[:] = b"\xff" * len(data)
    out = bytearray(16 * MIB)
    buffer.read_into(0, memoryview(out))
    assert [bytes(out[part * 4 * MIB : (part + 1) * 4 * MIB]) == bytes([part]) * (4 * MIB) for part in range(4)] == [
        True
    ] * 4


def test_a_client_that_never_waits_is_stopped():
    with (
        WorkerProcess("reference:delay_ms=4000", max_queued_nbytes=MIB) as small,
        connect(small.endpoint, SETTINGS) as greedy,
    ):
        context = Doubling(greedy.devices()[0])
        context.stream.compute(context.plan)
        record = context.plan.content.record[0][0]
        pending = [greedy.dispatcher.submit(GET_TENSOR, TensorRange(record, 0, 4)) for _ in range(4000)]
        with pytest.raises(SessionError, match="bytes waiting"):
            greedy.dispatcher.wait(pending[-1])
        with connect(small.endpoint, SETTINGS) as other:
            other.call(SYNCHRONIZE, Empty())
