"""What a worker makes of clients that do not speak properly, or mean harm."""

from __future__ import annotations

import os
import pickle
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import psutil
import pytest
import zmq

from rpc_backend.client import connect
from rpc_backend.graph import build, element_type, encode_graph, encode_tensor, op_table_digest
from rpc_backend.protocol import commands as c
from rpc_backend.protocol.records import Empty
from rpc_backend.settings import Settings
from rpc_backend.testing.workers import WorkerProcess

MIB = 1 << 20
REQUEST, REPLY, ERROR, NOTICE = range(4)
SETTINGS = Settings(heartbeat_timeout_ms=1000, connect_timeout_ms=5000)
F32 = element_type("F32")


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess("reference", mem_nbytes=64 * MIB) as running:
        yield running


@pytest.fixture(autouse=True)
def unharmed(worker) -> Iterator[None]:
    """After each test the worker lives, has grown by no claimed size, holds nothing, and serves."""
    before = psutil.Process(worker.pid).memory_info().rss
    yield
    assert worker.is_alive
    assert psutil.Process(worker.pid).memory_info().rss - before < 64 * MIB
    with connect(worker.endpoint, SETTINGS) as good:
        device = good.devices()[0]
        deadline = time.monotonic() + 2
        while device.memory().free_nbytes != 64 * MIB:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        buffer = device.alloc_buffer(5)
        buffer.write(0, memoryview(b"hello"))
        out = bytearray(5)
        buffer.read_into(0, memoryview(out))
        assert out == b"hello"


class Raw:
    """A DEALER that sends what it likes."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(endpoint)
        self.sequence = 1

    def greet(self) -> None:
        kind, _ = self.ask(c.HELLO.code, [1, 1, op_table_digest(), "raw", [], 1000])
        assert kind == REPLY

    def send(self, code: int, body: object, *payloads: bytes, stream: int = 0) -> None:
        header = [REQUEST, code, self.sequence, stream, body, [len(payload) for payload in payloads]]
        self.sequence += 1
        self.socket.send_multipart([msgpack.packb(header), *payloads])

    def receive(self, timeout_s: float = 2.0) -> tuple[int, list] | None:
        """Return kind and body of the next message, None if there is none."""
        if not self.socket.poll(int(1000 * timeout_s)):
            return None
        header = msgpack.unpackb(self.socket.recv_multipart()[0])
        return header[0], header[4]

    def ask(self, code: int, body: object, *payloads: bytes, stream: int = 0) -> tuple[int, list]:
        self.send(code, body, *payloads, stream=stream)
        answer = self.receive()
        assert answer is not None, "no answer"
        return answer

    def alloc(self, nbytes: int) -> int:
        kind, body = self.ask(c.ALLOC_BUFFER.code, [0, nbytes, "any"])
        assert kind == REPLY
        return body[0]

    def close(self) -> None:
        self.socket.close()
        self._context.term()


@pytest.fixture
def raw(worker) -> Iterator[Raw]:
    peer = Raw(worker.endpoint)
    yield peer
    peer.close()


def leaf(handle: int, n: int = 16, offset: int = 0) -> list:
    return encode_tensor(build.leaf(F32, [n]), {}, lambda _: (handle, offset), computed=False)


def test_an_unknown_command_is_an_error_and_the_session_goes_on(raw):
    raw.greet()
    kind, body = raw.ask(9999, [1, "x"])
    assert kind == ERROR
    assert "no command with code 9999" in body[1]
    assert raw.ask(c.PING.code, [])[0] == REPLY


def test_a_command_before_hello_is_an_error(raw):
    kind, body = raw.ask(c.ALLOC_BUFFER.code, [0, 64, "any"])
    assert kind == ERROR
    assert "HELLO" in body[1]


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\x00"],
        [b"\xc1"],
        [b"", b"", b""],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [msgpack.packb([REQUEST, 6, 2, 0, [[], 0, 1 << 40], [1 << 40]])],
        [msgpack.packb([REQUEST, 6, 2, 0, [[], 0, 4], [4]]), b"1234", b"5678"],
        [msgpack.packb([REQUEST, c.PING.code, 7, 0, [], []])],
        [msgpack.packb([REPLY, c.PING.code, 2, 0, [], []])],
        [b"\xdd\xff\xff\xff\xff"],
        [b"\x91" * 2000],
        [msgpack.packb([REQUEST, c.PING.code, 2, 0, [], [-1]])],
        [msgpack.packb([REQUEST, c.PING.code, 2, 1 << 63, [], []])],
        [msgpack.packb({"kind": 0})],
        [msgpack.packb(msgpack.ExtType(5, b"x"))],
    ],
)
def test_frames_that_break_the_protocol_end_that_connection_only(raw, frames):
    raw.greet()
    raw.socket.send_multipart(frames)
    raw.sequence = 2
    raw.send(c.PING.code, [])
    assert raw.receive(0.3) is None


@pytest.mark.parametrize("greeted", [True, False])
def test_random_bytes(worker, greeted):
    rng = random.Random(greeted)
    for _ in range(30):
        peer = Raw(worker.endpoint)
        if greeted:
            peer.greet()
        for _ in range(3):
            peer.socket.send_multipart([rng.randbytes(rng.randrange(64)) for _ in range(rng.randrange(1, 4))])
        peer.close()


def test_random_bodies_of_real_commands(worker):
    rng = random.Random(5)

    def value(depth: int = 0) -> object:
        choices = [0, -1, 1, 2**32, 2**63, 2**64 - 1, -(2**63), "x", b"y", None, True, 1.5, [], {}]
        if depth < 3 and rng.random() < 0.4:
            return [value(depth + 1) for _ in range(rng.randrange(12))]
        return rng.choice(choices)

    for row in c.COMMANDS.values():
        if row in (c.HELLO, c.GOODBYE):
            continue
        peer = Raw(worker.endpoint)
        peer.greet()
        for _ in range(20):
            payloads = [b"1234"] if rng.random() < 0.3 else []
            peer.send(row.code, [value() for _ in range(rng.randrange(6))], *payloads, stream=rng.choice([0, 0, 0, 7]))
        assert peer.ask(c.PING.code, []) is not None
        peer.close()


def test_not_zeromq_at_all(worker):
    host, port = worker.endpoint.removeprefix("tcp://").rsplit(":", 1)
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\xff" + bytes(8) + b"\x7f"):
        with socket.create_connection((host, int(port)), timeout=2) as connection:
            connection.sendall(data)


def test_offsets_and_sizes_that_overflow(raw):
    raw.greet()
    handle = raw.alloc(4096)
    for offset, nbytes in ((2**64 - 1, 1), (2**63, 2**63), (0, 2**40), (-1, 4), (0, -4), (60, 8)):
        kind, body = raw.ask(c.GET_TENSOR.code, [leaf(handle), offset, nbytes])
        assert kind == ERROR
        assert "outside" in body[1]
    for place in (4096 - 60, 2**64 - 4, 2**63 - 4, -4):
        kind, body = raw.ask(c.GET_TENSOR.code, [leaf(handle, offset=place), 0, 4])
        assert kind == ERROR
        assert "outside its buffer" in body[1]


def test_no_byte_of_anothers_buffer_comes_back(worker, raw):
    raw.greet()
    with connect(worker.endpoint, SETTINGS) as victim:
        secret = victim.devices()[0].alloc_buffer(4096)
        secret.write(0, memoryview(b"secret!!" * 512))
        victim.devices()[0].create_stream().synchronize()
        for handle in (secret.handle, secret.handle + 1, 0, -1, 2**63):
            kind, body = raw.ask(c.GET_TENSOR.code, [leaf(handle), 0, 64])
            assert kind == ERROR
            assert b"secret" not in msgpack.packb(body)
        out = bytearray(4096)
        secret.read_into(0, memoryview(out))
        assert out == b"secret!!" * 512


def test_cancelling_and_negative_strides(raw):
    raw.greet()
    handle = raw.alloc(4096)
    for nb in ([4, -64, 64, 64], [4, 2**63, 2**63, 64], [-4, 64, 64, 64], [2**64 - 4, 64, 64, 64]):
        record = leaf(handle)
        record[1], record[2] = [4, 2, 2, 1], nb
        kind, body = raw.ask(c.GET_TENSOR.code, [record, 0, 4])
        assert kind == ERROR
        assert "out of range" in body[1]


def test_a_row_index_out_of_range(raw):
    raw.greet()
    handle = raw.alloc(4096)
    table, rows = build.leaf(F32, [16, 4]), build.leaf(element_type("I32"), [1])
    picked = build.get_rows(table, rows)
    places = {table: 0, rows: 1024, picked: 2048}
    record = encode_graph(_graph(picked), lambda tensor: (handle, places[tensor]))
    rows_record = encode_tensor(rows, {}, lambda _: (handle, 1024), computed=False)
    for index in (4, -1, 2**31 - 1, -(2**31)):
        raw.send(c.SET_TENSOR.code, [rows_record, 0, 4], index.to_bytes(4, "little", signed=True))
        raw.send(c.GRAPH_COMPUTE.code, [0, record])
        assert raw.receive()[0] == NOTICE
        kind, body = raw.ask(c.SYNCHRONIZE.code, [])
        assert kind == ERROR
        assert body[4] == "GRAPH_COMPUTE"


def _graph(tensor):
    from rpc_backend.graph import Graph

    return Graph.of(tensor)


def test_a_pickle_is_never_loaded(raw, tmp_path):
    target = tmp_path / "made-by-pickle"

    class Bomb:
        def __reduce__(self):
            return Path.touch, (target,)

    bomb = pickle.dumps(Bomb())
    raw.greet()
    handle = raw.alloc(len(bomb) + 64)
    record = encode_tensor(build.leaf(element_type("I8"), [len(bomb)]), {}, lambda _: (handle, 0), computed=False)
    raw.send(c.SET_TENSOR.code, [record, 0, len(bomb)], bomb)
    assert raw.ask(c.SYNCHRONIZE.code, [])[0] == REPLY
    assert raw.ask(c.GRAPH_RECOMPUTE.code, [0, bomb])[0] == REPLY
    raw.ask(c.STATS.code, [bomb])
    raw.socket.send_multipart([bomb])
    assert raw.receive(0.3) is None
    assert not target.exists()


def test_a_flood_of_connections_that_never_greet(worker):
    peers = [Raw(worker.endpoint) for _ in range(40)]
    for peer in peers:
        peer.send(c.PING.code, [])
    with connect(worker.endpoint, SETTINGS) as good:
        good.call(c.PING, Empty())
    for peer in peers:
        peer.close()
