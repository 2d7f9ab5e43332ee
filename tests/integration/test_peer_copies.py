"""COPY_TENSOR_TO between real workers: circles, stopped and killed receivers, where a worker does not connect."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from rpc_backend.client import Connection, connect
from rpc_backend.errors import WorkerLostError
from rpc_backend.graph import build, element_type
from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.protocol.peer_secrets import make_secret
from rpc_backend.settings import Settings
from rpc_backend.testing.workers import WorkerProcess
from rpc_backend.worker.peer_link import OPEN_TIMEOUT_S

F32 = element_type("F32")
SETTINGS = Settings(heartbeat_timeout_ms=2000, connect_timeout_ms=5000, command_timeout_ms=20_000, proto_minor=3)
N = 300_000


class Place:
    """A row on a worker, in a session of its own."""

    def __init__(self, connection: Connection, n: int = N) -> None:
        self.connection = connection
        self.device = connection.devices()[0]
        self.stream = self.device.create_stream()
        self.rows = []
        for _ in range(2):
            row = build.leaf(F32, [n])
            row.buffer = self.device.alloc_buffer(4 * n)
            self.rows.append(row)
        self.n = n

    def fill(self, value: float) -> None:
        self.rows[0].buffer.write(0, memoryview(np.full(self.n, value, np.float32)).cast("B"))

    def value(self) -> float:
        out = np.empty(self.n, np.float32)
        self.stream.get_tensor(self.rows[1], memoryview(out))
        assert (out == out[0]).all()
        return float(out[0])

    def take_from(self, other: Place) -> bool:
        """Queue a copy of the other's first row to the second here."""
        return self.stream.copy_tensor_async(other.stream, other.rows[0], self.stream, self.rows[1])


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def places(stack: ExitStack, count: int, **options) -> tuple[list[WorkerProcess], list[Place]]:
    workers = [stack.enter_context(WorkerProcess("reference", **options)) for _ in range(count)]
    made = [Place(stack.enter_context(connect(worker.endpoint, SETTINGS))) for worker in workers]
    for source in made:
        for target in made:
            assert source is target or source.device.can_send_to(target.device)
    return workers, made


def test_three_workers_copy_in_a_circle_at_once(stack):
    _, (one, two, three) = places(stack, 3)
    circle = [(one, two), (two, three), (three, one)]
    for number in range(20):
        for index, (source, _) in enumerate(circle):
            source.fill(10 * number + index)
        threads = [threading.Thread(target=target.take_from, args=(source,)) for source, target in circle]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert [target.value() for _, target in circle] == [10 * number, 10 * number + 1, 10 * number + 2]
    for place in (one, two, three):
        counts = place.connection.counters.snapshot()
        assert counts["COPY_TENSOR_TO"].calls == 20


def test_others_are_served_while_a_receiver_does_not_answer(stack):
    workers, (one, two) = places(stack, 2, heartbeat_ms=20_000)
    one.fill(3)
    assert two.take_from(one)
    assert two.value() == 3
    one.fill(4)
    one.stream.synchronize()
    workers[1].pause()
    try:
        request = copy_request(one, two)
        answer = one.connection.dispatcher.submit(c.COPY_TENSOR_TO, request)
        other = Place(stack.enter_context(connect(workers[0].endpoint, SETTINGS)))
        started_s = time.monotonic()
        for number in range(5):
            other.fill(number)
            assert other.stream.copy_tensor(other.rows[0], other.rows[1])
            assert other.value() == number
        one.connection.call(c.SYNCHRONIZE, r.Empty())  # the same stream too
        assert time.monotonic() - started_s < 5
        assert not answer.future.done()
    finally:
        workers[1].resume()
    assert answer.future.result(10).reply.result
    assert two.value() == 4


def copy_request(source: Place, target: Place) -> r.CopyTensorTo:
    from rpc_backend.client.placement import encode_placed

    records = (encode_placed(source.device, source.rows[0]), encode_placed(target.device, target.rows[1]))
    return r.CopyTensorTo(*records, 4 * N, target.connection.endpoint, 0)


def test_a_receiver_that_is_killed_is_named(stack):
    workers, (one, two) = places(stack, 2)
    one.fill(3)
    workers[1].pause()
    assert two.take_from(one)
    workers[1].kill()
    with pytest.raises(WorkerLostError, match=workers[1].endpoint):
        two.value()
    one.stream.synchronize()
    one.fill(5)


def announced(connection: Connection, endpoint: str) -> Future[bool]:
    request = r.PeerConnect(endpoint, make_secret())
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(lambda: connection.call(c.PEER_CONNECT, request).result)
    finally:
        pool.shutdown(wait=False)


@pytest.fixture
def bystander() -> Iterator[socket.socket]:
    """A service of this machine that is no worker."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(1.0)
        yield server


def endpoint_of(server: socket.socket) -> str:
    return f"tcp://127.0.0.1:{server.getsockname()[1]}"


def is_untouched(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize(
    "options",
    [{"options": ("--peer-allow", "none")}, {"options": ("--peer-allow", "tcp://127.0.0.1:1")}, {"listen": "0.0.0.0"}],
    ids=["nobody", "another", "serves others"],
)
def test_what_the_rules_forbid_is_refused_without_an_attempt(stack, bystander, options):
    worker = stack.enter_context(WorkerProcess("reference", **options))
    endpoint = worker.endpoint.replace("0.0.0.0", "127.0.0.1")
    with connect(endpoint, SETTINGS) as connection:
        started_s = time.monotonic()
        assert announced(connection, endpoint_of(bystander)).result(10) is False
        assert time.monotonic() - started_s < 2
    assert is_untouched(bystander)


def test_what_the_client_did_not_announce_is_not_connected_to(stack, bystander):
    worker = stack.enter_context(WorkerProcess("reference"))
    with connect(worker.endpoint, SETTINGS) as connection:
        place = Place(connection)
        request = copy_request(place, place)
        elsewhere = r.CopyTensorTo(request.source, request.target, request.nbytes, endpoint_of(bystander), 0)
        assert connection.call(c.COPY_TENSOR_TO, elsewhere).result is False
    assert is_untouched(bystander)


def test_a_client_learns_nothing_of_what_is_at_an_endpoint(stack, bystander):
    """An open port, a closed one, and a worker that does not know the client: the same answer after the same time."""
    worker, stranger = (stack.enter_context(WorkerProcess("reference")) for _ in range(2))
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = endpoint_of(free)
    with connect(worker.endpoint, SETTINGS) as connection:
        started_s = time.monotonic()
        answers = [announced(connection, text) for text in (endpoint_of(bystander), closed, stranger.endpoint)]
        times = []
        for answer in answers:
            assert answer.result(20) is False
            times.append(time.monotonic() - started_s)
    assert min(times) > OPEN_TIMEOUT_S - 0.5
    assert max(times) < OPEN_TIMEOUT_S + 2


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but its own loopback")
        address: str = probe.getsockname()[0]
    if address.startswith(("127.", "169.254.")):
        pytest.skip("this machine has no address that another could use")
    return address


def test_workers_at_addresses_of_the_network_need_no_configuration(stack):
    _, (one, two) = places(stack, 2, listen=own_address())
    one.fill(6)
    assert two.take_from(one)
    assert two.value() == 6
    assert one.connection.counters.snapshot()["COPY_TENSOR_TO"].calls == 1
