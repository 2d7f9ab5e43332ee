"""What a worker makes of bytes on its gateway that no ggml-rpc client would send."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import psutil
import pytest

from rpc_backend.client import connect
from rpc_backend.errors import RpcBackendError
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.host.local_workers import LocalWorkers
from rpc_backend.registry import load_registry
from rpc_backend.settings import Settings
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.worker import WorkerConfig
from rpc_transport_ggml.requests import HANDLERS, Client
from rpc_transport_ggml.stream import Stopped
from rpc_transport_ggml.wire import FLAG_COMPUTE, HEAD, Code, GraphRecord, TensorRecord, encode_graph, encode_tensor
from rpc_transport_ggml.worker_session import WorkerSession

MIB = 1 << 20
LIMIT_S = 10.0
SETTINGS = Settings(connect_timeout_ms=5000)
EXTREMES = (0, 1, 7, 8, 255, 2**31, 2**32 - 1, 2**32, 2**62, 2**63, 2**64 - 1)
ADD, ROPE, FLASH_ATTN_EXT = 2, 48, 74


class Gateway(NamedTuple):
    pid: int
    endpoint: str
    port: int


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--gateway", f"tcp://127.0.0.1:{port}", "--log-level", "error"]
    with LocalWorkers.start(1, backend="reference", memory="64MiB", options=options) as workers:
        yield Gateway(workers.workers[0].pid, str(workers.endpoints[0]), port)


@pytest.fixture(autouse=True)
def unharmed(request) -> Iterator[None]:
    """After each test the worker lives, has grown by no claimed size, holds nothing, and serves."""
    if "gateway" not in request.fixturenames:
        yield
        return
    running = request.getfixturevalue("gateway")
    before = psutil.Process(running.pid).memory_info().rss
    yield
    assert psutil.Process(running.pid).memory_info().rss - before < 64 * MIB
    with connect(running.endpoint, SETTINGS) as good:
        deadline = time.monotonic() + LIMIT_S
        while good.devices()[0].memory().free_nbytes != 64 * MIB:
            assert time.monotonic() < deadline, "a session of the gateway was not freed"
            time.sleep(0.01)
    with Raw(running.port) as raw:
        handle, base = raw.alloc(64)
        record = row(1, handle, base)
        raw.send(Code.SET_TENSOR, encode_tensor(record) + struct.pack("<BQ", 0, 0) + b"x" * 32)
        assert raw.ask(Code.GET_TENSOR, encode_tensor(record) + struct.pack("<QQ", 0, 32)) == b"x" * 32


class Raw:
    """A TCP client that says what it likes, after HELLO if it likes."""

    def __init__(self, port: int, *, greet: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        if greet:
            assert self.ask(Code.HELLO, bytes(24)) == bytes((7, 0, 0)) + bytes(25)

    def send(self, code: int, payload: bytes = b"", size: int | None = None) -> None:
        self.socket.sendall(HEAD.pack(code, len(payload) if size is None else size) + payload)

    def ask(self, code: int, payload: bytes = b"") -> bytes:
        self.send(code, payload)
        return self.receive(struct.unpack("<Q", self.receive(8))[0])

    def receive(self, nbytes: int) -> bytes:
        data = b""
        while len(data) < nbytes:
            part = self.socket.recv(nbytes - len(data))
            assert part, "the gateway hung up"
            data += part
        return data

    def alloc(self, nbytes: int) -> tuple[int, int]:
        handle, _ = struct.unpack("<QQ", self.ask(Code.ALLOC_BUFFER, struct.pack("<IQ", 0, nbytes)))
        return handle, struct.unpack("<Q", self.ask(Code.BUFFER_GET_BASE, struct.pack("<Q", handle)))[0]

    def ask_until_cut(self, code: int, payload: bytes) -> None:
        """Ask again and again: what fails without an answer may be told after the next one."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            self.ask(code, payload)

    def is_cut(self) -> bool:
        """Whether the gateway hangs up, without another word."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def row(id: int, buffer: int, data: int, op: int = 0, sources: tuple[int, ...] = (), **changes) -> TensorRecord:
    filled = (*sources, *(0,) * (10 - len(sources)))
    fields = (id, 0, buffer, (8, 1, 1, 1), (4, 32, 32, 32), op, bytes(64), FLAG_COMPUTE, filled, 0, 0, data, b"t")
    return TensorRecord(*fields)._replace(**changes)


def graph(*nodes: TensorRecord, ids: tuple[int, ...] | None = None) -> bytes:
    return encode_graph(0, GraphRecord(tuple(node.id for node in nodes) if ids is None else ids, list(nodes)))


@pytest.mark.parametrize("data", [b"", b"\x0e", b"\x0e" + bytes(8), b"GET / HTTP/1.1\r\n\r\n", bytes(1 << 16)])
def test_what_is_no_hello(gateway, data):
    with Raw(gateway.port, greet=False) as raw:
        raw.socket.sendall(data)
        raw.socket.shutdown(socket.SHUT_WR)
        assert raw.is_cut()


@pytest.mark.parametrize("code", [code for code in range(256) if code != Code.HELLO][::7])
def test_another_command_than_hello(gateway, code):
    with Raw(gateway.port, greet=False) as raw:
        raw.send(code, bytes(24))
        assert raw.is_cut()


@pytest.mark.parametrize("size", [0, 23, 25, 2**63])
def test_a_hello_of_another_size(gateway, size):
    with Raw(gateway.port, greet=False) as raw:
        raw.send(Code.HELLO, bytes(24), size)
        assert raw.is_cut()


@pytest.mark.parametrize("code", [*Code, 18, 255])
@pytest.mark.parametrize("size", [3, 2**31, 2**63, 2**64 - 1])
def test_claimed_sizes(gateway, code, size):
    with Raw(gateway.port) as raw:
        raw.send(code, bytes(1024), size)
        raw.socket.shutdown(socket.SHUT_WR)
        assert raw.is_cut()


def test_messages_that_stop_anywhere(gateway):
    with Raw(gateway.port) as raw:
        handle, base = raw.alloc(128)
    payloads = {
        Code.SET_TENSOR: encode_tensor(row(1, handle, base)) + struct.pack("<BQ", 0, 0) + bytes(32),
        Code.GRAPH_COMPUTE: graph(row(2, handle, base + 32, ADD, (1, 1)), row(1, handle, base), ids=(2,)),
        Code.GET_ALLOC_SIZE: bytes(4 + 11 * 296),
    }
    for code, payload in payloads.items():
        for nbytes in range(0, len(payload), 97):
            with Raw(gateway.port) as raw:
                raw.alloc(MIB)
                raw.send(code, payload[:nbytes], len(payload))


@pytest.mark.parametrize("value", EXTREMES)
def test_sizes_and_offsets_without_bounds(gateway, value):
    u64 = struct.pack("<Q", value)
    for code, tail in (
        (Code.GET_TENSOR, u64 + struct.pack("<Q", 64)),
        (Code.GET_TENSOR, struct.pack("<Q", 64) + u64),
        (Code.MEMSET_TENSOR, u64 + struct.pack("<QB", 64, 1)),
        (Code.MEMSET_TENSOR, struct.pack("<Q", 33) + u64 + b"\1"),
        (Code.SET_TENSOR, b"\0" + u64 + bytes(64)),
    ):
        with Raw(gateway.port) as raw:
            handle, base = raw.alloc(64)
            raw.send(code, encode_tensor(row(1, handle, base)) + tail)
            if code == Code.GET_TENSOR:
                assert raw.is_cut()
                continue
            with pytest.raises((ConnectionError, AssertionError), match=r"hung up|roken pipe|reset"):
                raw.ask_until_cut(Code.GET_TENSOR, encode_tensor(row(1, handle, base)) + struct.pack("<QQ", 0, 1))


@pytest.mark.parametrize("value", [64 * MIB + 1, *(value for value in EXTREMES if value > 64 * MIB)])
def test_memory_without_bounds_is_refused_and_the_client_lives(gateway, value):
    with Raw(gateway.port) as raw:
        assert raw.ask(Code.ALLOC_BUFFER, struct.pack("<IQ", 0, value)) == bytes(16)
        assert raw.ask(Code.DEVICE_COUNT) == struct.pack("<I", 1)


def test_more_buffers_than_memory(gateway):
    with Raw(gateway.port) as raw:
        answers = [raw.ask(Code.ALLOC_BUFFER, struct.pack("<IQ", 0, 8 * MIB)) for _ in range(12)]
    assert [answer == bytes(16) for answer in answers] == [False] * 8 + [True] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"buffer": 0},
        {"buffer": 2**63},
        {"data": 0},
        {"data": 2**64 - 4},
        {"data": "+40"},
        {"data": "-4"},
        {"data": "+2"},
        {"type": 4},
        {"type": 39},
        {"type": 2**32 - 1},
        {"ne": (2**32 - 1,) * 4},
        {"ne": (2**31, 2**31, 1, 1), "nb": (0, 0, 0, 0)},
        {"ne": (8, 2**31, 1, 1), "nb": (4, 0, 0, 0)},
        {"nb": (2**32 - 1,) * 4},
        {"nb": (1, 32, 32, 32)},
        {"op": 23},
        {"op": 101},
        {"op": 2**32 - 1},
        {"sources": (2,) * 10},
        {"sources": (1, 0, 1, 0, 0, 0, 0, 0, 0, 0)},
        {"sources": (2**64 - 1,) * 10},
        {"sources": (0,) * 10},
        {"sources": (1,) * 10},
        {"op": ROPE, "op_params": b"\xff" * 64},
        {"op": FLASH_ATTN_EXT, "op_params": b"\xff" * 64},
    ],
    ids=str,
)
def test_nodes_that_cannot_be(gateway, changes):
    with Raw(gateway.port) as raw:
        handle, base = raw.alloc(64)
        if isinstance(changes.get("data"), str):
            changes = {"data": base + int(changes["data"])}
        node = row(2, handle, base + 32, ADD, (1, 1))._replace(**changes)
        raw.send(Code.GRAPH_COMPUTE, graph(row(1, handle, base), node, ids=(2,)))
        assert raw.is_cut()


@pytest.mark.parametrize(
    ("ids", "sources"),
    [((2, 3), ((3, 3), (2, 2))), ((2,), ((2, 2),)), ((2, 2), ((1, 1),)), ((0,), ((1, 1),)), ((9,), ())],
)
def test_ids_in_circles(gateway, ids, sources):
    with Raw(gateway.port) as raw:
        handle, base = raw.alloc(128)
        nodes = [row(2 + i, handle, base + 32, ADD, used) for i, used in enumerate(sources)]
        raw.send(Code.GRAPH_COMPUTE, graph(row(1, handle, base), *nodes, ids=ids))
        assert raw.is_cut()


def test_a_graph_of_views_of_views_of_views(gateway):
    """A chain as long as a graph may be: nothing here recurses."""
    with Raw(gateway.port) as raw:
        handle, base = raw.alloc(64)
        chain = [row(1, handle, base), *(row(n, handle, base, 37, (n - 1,)) for n in range(2, 20_000))]
        raw.send(Code.GRAPH_COMPUTE, graph(*chain))
        assert raw.ask(Code.DEVICE_COUNT) == struct.pack("<I", 1)


def test_index_rows_that_are_outside(gateway):
    """What only the data shows is found by the kernel; the worker closes the connection, and lives."""
    get_rows, i32 = 40, 26
    with Raw(gateway.port) as raw:
        handle, base = raw.alloc(256)
        rows = row(3, handle, base + 64, type=i32, ne=(1, 1, 1, 1), nb=(4, 4, 4, 4))
        raw.send(Code.SET_TENSOR, encode_tensor(rows) + struct.pack("<BQi", 0, 0, 2**31 - 1))
        node = row(2, handle, base + 32, get_rows, (1, 3))
        raw.send(Code.GRAPH_COMPUTE, graph(row(1, handle, base), rows, node, ids=(2,)))
        assert raw.is_cut()


def test_more_clients_than_are_let_in(gateway):
    many = [socket.create_connection(("127.0.0.1", gateway.port), LIMIT_S) for _ in range(80)]
    with closing(many[-1]):
        assert many[-1].recv(1) == b""
    for one in many:
        one.close()


def test_clients_come_and_go(gateway):
    for _ in range(300):
        with Raw(gateway.port) as raw:
            raw.alloc(MIB)


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)

    def read(self, nbytes: int) -> memoryview:
        if nbytes > len(self.data):
            raise Stopped
        taken, self.data = self.data[:nbytes], self.data[nbytes:]
        return taken

    def read_into(self, out: memoryview) -> None:
        out[:] = self.read(out.nbytes)


def _templates(handle: int, base: int) -> list[tuple[Code, bytes]]:
    a, node = encode_tensor(row(1, handle, base)), row(2, handle, base + 32, ADD, (1, 1))
    return [
        (Code.ALLOC_BUFFER, struct.pack("<IQ", 0, 1000)),
        (Code.GET_ALIGNMENT, bytes(4)),
        (Code.BUFFER_GET_BASE, struct.pack("<Q", handle)),
        (Code.FREE_BUFFER, struct.pack("<Q", handle)),
        (Code.BUFFER_CLEAR, struct.pack("<QB", handle, 1)),
        (Code.SET_TENSOR, a + struct.pack("<BQ", 0, 0) + bytes(32)),
        (Code.SET_TENSOR_HASH, a + bytes(16)),
        (Code.GET_TENSOR, a + struct.pack("<QQ", 0, 32)),
        (Code.COPY_TENSOR, a + encode_tensor(row(2, handle, base + 32))),
        (Code.GRAPH_COMPUTE, graph(row(1, handle, base), node, ids=(2,))),
        (Code.INIT_TENSOR, a),
        (Code.GET_ALLOC_SIZE, bytes(4) + encode_tensor(node) + a + a + bytes(296 * 8)),
        (Code.GRAPH_RECOMPUTE, bytes(4)),
        (Code.MEMSET_TENSOR, a + struct.pack("<QQB", 0, 32, 1)),
    ]


def _mutated(rnd: random.Random, payload: bytes) -> bytes:
    """Change up to four places: bytes, or whole numbers to extremes."""
    changed = bytearray(payload)
    for _ in range(rnd.randrange(5)):
        at = rnd.randrange(max(1, len(changed) - 8))
        if rnd.random() < 0.5:
            changed[at : at + 1] = rnd.randbytes(1)
        else:
            changed[at : at + 8] = struct.pack("<Q", rnd.choice(EXTREMES))
    return bytes(changed[: len(payload)])


def test_a_hundred_thousand_random_messages():
    """On a worker in this process: every message runs, or fails with an error of ours, and memory stays flat."""
    rnd = random.Random(1)
    devices = load_registry().create_devices("reference", DeviceOptions())
    with InlineWorker(devices, WorkerConfig((), {0: MIB})) as worker:
        before = 0
        for n in range(100_000):
            if n % 20 == 0:
                session = WorkerSession(worker.service.connect_local, lambda: None)
                client = Client(session)
                HANDLERS[Code.ALLOC_BUFFER].run(client, 0, 64)
                (region,) = client.places._regions.values()
            code, payload = rnd.choice(_templates(region.handle, region.base))
            _run(client, code, _mutated(rnd, payload))
            if n % 20 == 19:
                session.close()
            if n == 20_000:
                before = psutil.Process().memory_info().rss
        assert psutil.Process().memory_info().rss - before < 16 * MIB
        assert worker.service.state.seats[0].account.used_nbytes == 0
        assert len(worker.service.state.sessions) == 0


def _run(client: Client, code: Code, payload: bytes) -> None:
    handler = HANDLERS[code]
    try:
        if handler.form is None:
            handler.run(client, _Bytes(payload), len(payload))
        else:
            handler.run(client, *handler.form.unpack(payload))
    except (RpcBackendError, Stopped):
        return


def test_random_messages_on_the_wire(gateway):
    rnd = random.Random(2)
    for _ in range(500):
        with Raw(gateway.port) as raw:
            handle, base = raw.alloc(64)
            for _ in range(4):
                code, payload = rnd.choice(_templates(handle, base))
                try:
                    raw.send(code, _mutated(rnd, payload))
                except ConnectionError:
                    break
