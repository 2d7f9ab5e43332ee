"""What a client sees when workers die, hang, come late or are something else."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from rpc_backend.client import Connection, connect
from rpc_backend.errors import ConnectError, DeadlineError, EndpointError, NegotiationError, WorkerLostError
from rpc_backend.graph import Graph, build, element_type
from rpc_backend.interfaces import Device
from rpc_backend.protocol.commands import PING
from rpc_backend.protocol.records import Empty
from rpc_backend.settings import Settings
from rpc_backend.testing.workers import WorkerProcess

F32 = element_type("F32")
T_HB_S = 1.0
SETTINGS = Settings(heartbeat_timeout_ms=1000, connect_timeout_ms=1000, command_timeout_ms=20_000)

Start = Callable[..., WorkerProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """A function that starts a worker; all end with the test."""
    with ExitStack() as stack:
        yield lambda *devices, **options: stack.enter_context(WorkerProcess(*devices, **options))


class Doubling:
    """`y = x + x` on a device."""

    def __init__(self, device: Device) -> None:
        self.stream = device.create_stream()
        self.x = build.leaf(F32, [64])
        self.y = build.add(self.x, self.x)
        self.x.buffer = self.y.buffer = device.alloc_buffer(512)
        self.y.offset = 256
        self.plan = device.compile(Graph.of(self.y))

    def run(self, value: float) -> float:
        self.stream.set_tensor(self.x, memoryview(np.full(64, value, np.float32)))
        self.stream.compute(self.plan)
        out = np.empty(64, np.float32)
        self.stream.get_tensor(self.y, memoryview(out))
        return float(out[-1])


def run_on(connection: Connection, value: float = 3.0) -> float:
    return Doubling(connection.devices()[0]).run(value)


def test_a_killed_worker_is_named_and_the_others_live(start):
    workers = [start("reference") for _ in range(3)]
    connections = [connect(worker.endpoint, SETTINGS) for worker in workers]
    chains = [Doubling(connection.devices()[0]) for connection in connections]
    for round_ in range(2):
        workers[1].kill()
        started = time.monotonic()
        with pytest.raises(WorkerLostError) as caught:
            chains[1].run(1.0)
        assert time.monotonic() - started < T_HB_S
        assert caught.value.context.worker == workers[1].endpoint
        assert [chains[0].run(2.0), chains[2].run(3.0)] == [4.0, 6.0]
        connections[1].close()
        port = int(workers[1].endpoint.rsplit(":", 1)[1])
        workers[1] = start("reference", port=port)
        connections[1] = connect(workers[1].endpoint, SETTINGS)
        chains[1] = Doubling(connections[1].devices()[0])
        assert chains[1].run(float(round_)) == 2.0 * round_
    for connection in connections:
        connection.close()


def test_a_worker_that_dies_in_the_middle_of_a_graph(start):
    worker = start("reference:delay_ms=10000")
    connection = connect(worker.endpoint, SETTINGS)
    killer = threading.Timer(0.2, worker.kill)
    killer.start()
    started = time.monotonic()
    with pytest.raises(WorkerLostError, match=worker.endpoint):
        run_on(connection)
    assert time.monotonic() - started < 0.2 + T_HB_S
    killer.join()
    connection.close()


def test_a_stopped_worker_is_lost_in_time_and_its_late_answer_goes_nowhere(start):
    worker = start("reference")
    connection = connect(worker.endpoint, SETTINGS)
    chain = Doubling(connection.devices()[0])
    worker.pause()
    started = time.monotonic()
    with pytest.raises(WorkerLostError, match=worker.endpoint):
        chain.run(1.0)
    assert time.monotonic() - started < T_HB_S + 1
    worker.resume()
    time.sleep(0.2)
    with pytest.raises(WorkerLostError):
        connection.call(PING, Empty())
    with connect(worker.endpoint, SETTINGS) as again:
        assert run_on(again) == 6.0
    connection.close()


def test_a_graph_longer_than_the_deadline(start):
    worker = start("reference:delay_ms=1500")
    with connect(worker.endpoint, Settings(heartbeat_timeout_ms=500, command_timeout_ms=800)) as connection:
        chain = Doubling(connection.devices()[0])
        chain.stream.compute(chain.plan)
        with pytest.raises(DeadlineError, match=r"no answer within 0\.8 s") as caught:
            chain.stream.synchronize()
        assert caught.value.context.worker == worker.endpoint
        assert caught.value.context.command == "SYNCHRONIZE"
        time.sleep(1.0)
        connection.call(PING, Empty())
        chain.stream.synchronize()


def test_a_graph_longer_than_the_heartbeat_timeout_is_no_death(start):
    worker = start("reference:delay_ms=1500", heartbeat_ms=300)
    with connect(worker.endpoint, Settings(heartbeat_timeout_ms=300)) as connection:
        assert run_on(connection) == 6.0
        assert connection.counters.snapshot()["PING"].calls >= 3


@pytest.mark.parametrize("fate", ["killed", "paused"])
def test_closing_takes_little_time_when_the_worker_is_gone(start, fate):
    worker = start("reference")
    connection = connect(worker.endpoint, SETTINGS)
    buffer = connection.devices()[0].alloc_buffer(1 << 20)
    worker.kill() if fate == "killed" else worker.pause()
    started = time.monotonic()
    buffer.close()
    connection.close()
    assert time.monotonic() - started < 3


def test_a_program_ends_in_time_when_its_workers_are_gone(start):
    workers = [start("reference") for _ in range(2)]
    script = (
        "import sys; from rpc_backend.client import connect\n"
        "from contextlib import ExitStack\n"
        "with ExitStack() as stack:\n"
        "    opened = [stack.enter_context(connect(name)) for name in sys.argv[1:]]\n"
        "    held = [each.devices()[0].alloc_buffer(1 << 20) for each in opened]\n"
        "    print('open', flush=True); sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", script, *(worker.endpoint for worker in workers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"open\n"
        for worker in workers:
            worker.kill()
        program.communicate(b"\n", timeout=3)
        assert program.returncode == 0


# Connecting


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_nobody_there():
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    started = time.monotonic()
    with pytest.raises(ConnectError, match=endpoint):
        connect(endpoint, SETTINGS)
    assert time.monotonic() - started < SETTINGS.connect_timeout_ms / 1000 + 1


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(256))])
def test_something_else_serves_there(says):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            held = []
            while True:
                try:
                    held.append(server.accept()[0])
                    held[-1].sendall(says)
                except OSError:
                    for client in held:
                        client.close()
                    return

        thread = threading.Thread(target=answer)
        thread.start()
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(ConnectError, match=endpoint):
            connect(endpoint, SETTINGS)
        assert time.monotonic() - started < SETTINGS.connect_timeout_ms / 1000 + 1
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    assert not thread.is_alive()


def test_an_endpoint_that_cannot_be_parsed_is_quoted():
    with pytest.raises(EndpointError, match=r"'127\.0\.0\.1'"):
        connect("127.0.0.1", SETTINGS)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_bare_host_and_port_is_an_endpoint(start, host):
    port = start("null").endpoint.rsplit(":", 1)[1]
    with connect(f"{host}:{port}", SETTINGS) as connection:
        connection.call(PING, Empty())


def test_another_major_version_is_refused_by_name(start, monkeypatch):
    worker = start("null")
    monkeypatch.setattr("rpc_backend.protocol.negotiation.MAJOR", 2)
    with pytest.raises(NegotiationError, match=r"client speaks version 2\.\d .* the worker 1\.\d .*update the worker"):
        connect(worker.endpoint, SETTINGS)
