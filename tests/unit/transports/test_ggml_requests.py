"""The commands of ggml-rpc on a worker without sockets or threads."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pytest

from rpc_backend.errors import GraphError, RemoteProtocolError, UnsupportedOpError
from rpc_backend.graph import OPS
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.registry import load_registry
from rpc_backend.testing.devices import FailingDevice, NullDevice
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.worker import WorkerConfig
from rpc_transport_ggml.requests import HANDLERS, Client, Reply, greeting
from rpc_transport_ggml.wire import FLAG_COMPUTE, Code, GraphRecord, TensorRecord, encode_graph, encode_tensor
from rpc_transport_ggml.worker_session import WorkerSession

MIB = 1 << 20


class Bytes:
    """A stream of bytes that are there."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, nbytes: int) -> memoryview:
        taken, self.data = self.data[:nbytes], self.data[nbytes:]
        assert len(taken) == nbytes
        return memoryview(taken)

    def read_into(self, out: memoryview) -> None:
        out[:] = self.read(out.nbytes)


class Peer:
    """A client, and what it says."""

    def __init__(self, worker: InlineWorker) -> None:
        self.n_failures = 0
        self.session = WorkerSession(worker.service.connect_local, self._count)
        self.client = Client(self.session)

    def call(self, code: Code, payload: bytes = b"") -> bytes | None:
        handler = HANDLERS[code]
        if handler.form is None:
            answer = handler.run(self.client, Bytes(payload), len(payload))
        else:
            answer = handler.run(self.client, *handler.form.unpack(payload))
        if not isinstance(answer, Reply):
            return answer
        parts = b"".join(map(bytes, answer.parts))
        assert len(parts) == answer.nbytes
        return parts

    def alloc(self, nbytes: int, device: int = 0) -> tuple[int, int]:
        handle, size = struct.unpack("<QQ", self.call(Code.ALLOC_BUFFER, struct.pack("<IQ", device, nbytes)) or b"")
        assert size == nbytes
        return handle, struct.unpack("<Q", self.call(Code.BUFFER_GET_BASE, struct.pack("<Q", handle)) or b"")[0]

    def write(self, record: TensorRecord, data: bytes, offset: int = 0) -> None:
        self.call(Code.SET_TENSOR, encode_tensor(record) + struct.pack("<BQ", 0, offset) + data)

    def read(self, record: TensorRecord, nbytes: int, offset: int = 0) -> bytes:
        return self.call(Code.GET_TENSOR, encode_tensor(record) + struct.pack("<QQ", offset, nbytes)) or b""

    def compute(self, *nodes: TensorRecord, tensors: tuple[TensorRecord, ...], device: int = 0) -> None:
        graph = GraphRecord(tuple(node.id for node in nodes), [*tensors, *nodes])
        self.call(Code.GRAPH_COMPUTE, encode_graph(device, graph))

    def _count(self) -> None:
        self.n_failures += 1


@pytest.fixture
def worker() -> Iterator[InlineWorker]:
    devices = load_registry().create_devices("reference", DeviceOptions())
    config = WorkerConfig((), {0: 8 * MIB}, max_payload_nbytes=64 << 10, max_queued_nbytes=MIB)
    with InlineWorker([*devices, NullDevice("other")], config) as running:
        yield running


@pytest.fixture
def peer(worker) -> Peer:
    return Peer(worker)


def row(id: int, buffer: int, data: int, n: int = 8, op: str = "", sources: tuple[int, ...] = ()) -> TensorRecord:
    filled = (*sources, *(0,) * (10 - len(sources)))
    nb = (4, 4 * n, 4 * n, 4 * n)
    code = OPS[op].code if op else 0
    name = f"t{id}".encode()
    return TensorRecord(id, 0, buffer, (n, 1, 1, 1), nb, code, bytes(64), FLAG_COMPUTE, filled, 0, 0, data, name)


def calls(worker: InlineWorker, command: str) -> int:
    return worker.service.state.counters.snapshot(1).commands.get(command, [0])[0]


def test_what_the_server_is(peer):
    assert len(greeting()) == 28
    assert greeting()[:4] == bytes((7, 0, 0, 0))
    assert peer.call(Code.DEVICE_COUNT) == struct.pack("<I", 2)
    device = struct.pack("<I", 0)
    assert peer.call(Code.GET_ALIGNMENT, device) == struct.pack("<Q", 64)
    assert struct.unpack("<Q", peer.call(Code.GET_MAX_SIZE, device))[0] > 8 * MIB
    assert peer.call(Code.GET_DEVICE_MEMORY, device) == struct.pack("<QQ", 8 * MIB, 8 * MIB)
    with pytest.raises(GraphError, match="stream 2 does not exist"):
        peer.call(Code.GET_DEVICE_MEMORY, struct.pack("<I", 2))


@pytest.mark.parametrize("nbytes", [8 * MIB + 1, 2**62 + 1, 2**63, 2**64 - 1])
def test_memory_that_is_not_there_is_handle_0(peer, nbytes):
    assert peer.call(Code.ALLOC_BUFFER, struct.pack("<IQ", 0, nbytes)) == bytes(16)
    assert peer.alloc(8 * MIB)[0]


def test_any_buffer_may_hold_weights(worker, peer):
    """The protocol does not say what a buffer is for, and a device may be slow with weights it knows nothing of."""
    handle, _ = peer.alloc(64)
    assert worker.service.state.handles.find(peer.session.hello.session, handle).buffer.usage == "weights"


def test_buffers_are_the_sessions_own(worker, peer):
    handle, _ = peer.alloc(64)
    other = Peer(worker)
    for code in (Code.BUFFER_GET_BASE, Code.FREE_BUFFER):
        with pytest.raises(GraphError, match="not one of this connection's"):
            other.call(code, struct.pack("<Q", handle))


def test_bytes_go_in_and_out_in_pieces(peer):
    nbytes = 3 * MIB + 4
    handle, base = peer.alloc(nbytes)
    data = np.random.default_rng(1).bytes(nbytes)
    record = row(1, handle, base, nbytes // 4)
    peer.write(record, data)
    assert peer.read(record, nbytes) == data
    assert peer.read(record, 100_000, 7) == data[7:100_007]
    assert peer.read(record, 0) == b""
    peer.write(record, b"")
    peer.write(record, b"abcd", nbytes - 4)
    assert peer.read(record, 4, nbytes - 4) == b"abcd"


@pytest.mark.parametrize("offset", [30, 32, 2**63, 2**64 - 1])
def test_bytes_outside_a_tensor_or_its_buffer(peer, offset):
    handle, base = peer.alloc(32)
    with pytest.raises(GraphError, match="outside"):
        peer.read(row(1, handle, base), 4, offset)
    with pytest.raises(GraphError, match="outside"):
        peer.write(row(1, handle, base), b"abcd", offset)


def test_a_size_without_bounds_is_refused_before_anything_is_read(peer):
    handle, base = peer.alloc(32)
    head = encode_tensor(row(1, handle, base)) + struct.pack("<BQ", 0, 0)
    stream = Bytes(head)
    with pytest.raises(GraphError, match=f"{2**63 - len(head)} bytes at 0"):
        HANDLERS[Code.SET_TENSOR].run(peer.client, stream, 2**63)
    with pytest.raises(RemoteProtocolError, match="GRAPH_COMPUTE has"):
        HANDLERS[Code.GRAPH_COMPUTE].run(peer.client, stream, 2**63)


def test_a_write_past_a_tensor_inside_its_buffer_fails_at_the_worker(peer):
    handle, base = peer.alloc(64)
    peer.write(row(1, handle, base), bytes(40))
    assert peer.n_failures == 1
    with pytest.raises(GraphError, match="outside"):
        peer.call(Code.FREE_BUFFER, struct.pack("<Q", handle))


def test_clear_and_memset(peer):
    handle, base = peer.alloc(32)
    record = row(1, handle, base)
    peer.call(Code.BUFFER_CLEAR, struct.pack("<QB", handle, 7))
    peer.call(Code.MEMSET_TENSOR, encode_tensor(record) + struct.pack("<QQB", 4, 8, 9))
    assert peer.read(record, 32) == bytes((7,)) * 4 + bytes((9,)) * 8 + bytes((7,)) * 20
    peer.call(Code.INIT_TENSOR, encode_tensor(record))
    assert peer.call(Code.SET_TENSOR_HASH, encode_tensor(record) + struct.pack("<QQ", 0, 1)) == b"\0"
    assert peer.n_failures == 0


def test_copies_within_and_between_devices(peer):
    (handle, base), (other, other_base) = peer.alloc(64), peer.alloc(32, device=1)
    peer.write(row(1, handle, base), b"abcdefgh" * 4)
    for buffer, at in ((handle, base + 32), (other, other_base)):
        pair = encode_tensor(row(1, handle, base)) + encode_tensor(row(2, buffer, at))
        assert peer.call(Code.COPY_TENSOR, pair) == b"\1"
        assert peer.read(row(2, buffer, at), 32) == b"abcdefgh" * 4


def test_graphs_run_and_run_again(worker, peer):
    handle, base = peer.alloc(128)
    a, b, total = row(1, handle, base), row(2, handle, base + 32), row(3, handle, base + 64, op="ADD", sources=(1, 2))
    peer.write(a, np.arange(8, dtype=np.float32).tobytes())
    peer.write(b, np.ones(8, np.float32).tobytes())
    peer.compute(total, tensors=(a, b))
    assert np.frombuffer(peer.read(total, 32), np.float32).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    for command in (lambda: peer.call(Code.GRAPH_RECOMPUTE, bytes(4)), lambda: peer.compute(total, tensors=(a, b))):
        peer.write(b, np.full(8, 2, np.float32).tobytes())
        command()
        assert np.frombuffer(peer.read(total, 32), np.float32).tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    assert calls(worker, "SUBMIT") == 3
    assert calls(worker, "SET_TENSOR") == 0
    assert (
        len(worker.service.state.sessions.all()[0].streams[0].tasks) == 3
    )  # both inputs written; one; one, with the read


def test_a_graph_that_the_worker_dropped_is_sent_again(worker, peer):
    handle, base = peer.alloc(128)
    a = row(1, handle, base)
    node = row(2, handle, base + 32, op="ADD", sources=(1, 1))
    peer.compute(node, tensors=(a,))
    stream = worker.service.state.sessions.all()[0].streams[0]
    for last in (lambda: peer.read(node, 32), lambda: peer.call(Code.DEVICE_COUNT), lambda: peer.write(a, bytes(32))):
        stream.tasks.clear()
        peer.write(a, np.full(8, 3, np.float32).tobytes())
        peer.call(Code.GRAPH_RECOMPUTE, bytes(4))
        last()
        assert np.frombuffer(peer.read(node, 32), np.float32).tolist() == [6] * 8
    assert not stream.refuses_tasks
    assert peer.n_failures == 0


def test_a_read_that_follows_every_time_comes_with_the_step(worker, peer):
    handle, base = peer.alloc(128)
    a, b = row(1, handle, base), row(2, handle, base + 64)
    node = row(3, handle, base + 32, op="ADD", sources=(1, 1))
    peer.compute(node, tensors=(a,))
    for n in range(5):
        peer.write(a, np.full(8, n, np.float32).tobytes())
        peer.call(Code.GRAPH_RECOMPUTE, bytes(4))
        assert np.frombuffer(peer.read(node, 32), np.float32).tolist() == [2 * n] * 8
    assert calls(worker, "GET_TENSOR") == 1
    peer.write(a, np.full(8, 9, np.float32).tobytes())
    peer.call(Code.GRAPH_RECOMPUTE, bytes(4))
    peer.write(b, bytes(32))  # what is written after the step is not what the step read
    assert np.frombuffer(peer.read(node, 32), np.float32).tolist() == [18] * 8
    for other in (a, node, b, a, node, row(4, handle, base + 96)) * 3:
        peer.write(a, np.full(8, 7, np.float32).tobytes())
        peer.call(Code.GRAPH_RECOMPUTE, bytes(4))
        wanted = {1: 7, 3: 14}.get(other.id, 0)
        assert np.frombuffer(peer.read(other, 32), np.float32).tolist() == [wanted] * 8
        assert peer.read(node, 8, 4) == np.full(2, 14, np.float32).tobytes()
    assert len(worker.service.state.sessions.all()[0].streams[0].tasks) <= 8
    assert peer.n_failures == 0


def test_a_step_with_a_read_that_the_worker_dropped(worker, peer):
    handle, base = peer.alloc(128)
    a, node = row(1, handle, base), row(3, handle, base + 32, op="ADD", sources=(1, 1))
    peer.compute(node, tensors=(a,))
    for n in range(4):
        worker.service.state.sessions.all()[0].streams[0].tasks.clear()
        peer.write(a, np.full(8, n, np.float32).tobytes())
        peer.call(Code.GRAPH_RECOMPUTE, bytes(4))
        assert np.frombuffer(peer.read(node, 32), np.float32).tolist() == [2 * n] * 8
    assert peer.n_failures == 0


def test_writes_before_ever_other_graphs_are_sent_by_themselves(worker, peer):
    handle, base = peer.alloc(1024)
    inputs = [row(n, handle, base + 32 * n) for n in range(1, 9)]
    node = row(20, handle, base + 512, op="ADD", sources=(1, 2))
    for count in range(1, 9):
        for record in inputs[:count]:
            peer.write(record, np.full(8, count, np.float32).tobytes())
        peer.compute(node, tensors=(inputs[0], inputs[1]))
        assert np.frombuffer(peer.read(node, 32), np.float32)[0] == (2 * count if count > 1 else 1)
    assert len(worker.service.state.sessions.all()[0].streams[0].tasks) <= 5
    assert calls(worker, "SET_TENSOR") > 0
    assert peer.n_failures == 0


def test_writes_for_two_devices_keep_their_places(peer):
    places = [(*peer.alloc(64, device), device) for device in (0, 1)]
    for handle, base, device in places * 2:
        peer.write(row(1, handle, base), bytes((device + 1,)) * 32)
        peer.write(row(1, handle, base), bytes((device + 2,)) * 32)
    for handle, base, device in places:
        assert peer.read(row(1, handle, base), 32) == bytes((device + 2,)) * 32


def test_many_small_writes_are_not_held_without_bounds(worker, peer):
    handle, base = peer.alloc(32 * 300)
    for n in range(300):
        peer.write(row(1, handle, base + 32 * n), bytes((n % 256,)) * 32)
    assert calls(worker, "SET_TENSOR") == 256
    assert peer.read(row(1, handle, base + 32 * 299), 32) == bytes((299 % 256,)) * 32


def test_there_is_nothing_to_repeat_before_a_graph_or_after_a_free(peer):
    with pytest.raises(GraphError, match="no graph of device 0"):
        peer.call(Code.GRAPH_RECOMPUTE, bytes(4))
    (handle, base), (spare, _) = peer.alloc(64), peer.alloc(64)
    peer.compute(row(2, handle, base + 32, op="ADD", sources=(1, 1)), tensors=(row(1, handle, base),))
    peer.call(Code.FREE_BUFFER, struct.pack("<Q", spare))
    with pytest.raises(GraphError, match="no graph of device 0"):
        peer.call(Code.GRAPH_RECOMPUTE, bytes(4))


def test_a_graph_of_nothing_costs_the_worker_nothing(worker, peer):
    handle, base = peer.alloc(64)
    peer.compute(row(1, handle, base), tensors=())
    peer.call(Code.GRAPH_RECOMPUTE, bytes(4))
    assert calls(worker, "SUBMIT") == 0


def test_a_graph_for_a_device_that_is_not_there(peer):
    with pytest.raises(GraphError, match="a graph for device 2, but there are 2"):
        peer.compute(device=2, tensors=())


def test_a_graph_over_a_buffer_of_another_device_fails_at_the_worker(peer):
    handle, base = peer.alloc(64, device=1)
    peer.compute(row(2, handle, base + 32, op="ADD", sources=(1, 1)), tensors=(row(1, handle, base),))
    assert peer.n_failures == 1


def test_an_operation_that_the_device_lacks_is_named_with_shape_and_type():
    with InlineWorker([NullDevice(refused_ops=["ADD"])]) as worker:
        peer = Peer(worker)
        handle, base = peer.alloc(64)
        peer.compute(row(2, handle, base + 32, op="ADD", sources=(1, 1)), tensors=(row(1, handle, base),))
        assert isinstance(peer.session.failure, UnsupportedOpError)
        assert "<ADD t2 F32 [8, 1, 1, 1]> of F32 [8, 1, 1, 1]" in str(peer.session.failure)


def test_a_graph_that_fails_while_it_runs():
    with InlineWorker([FailingDevice(NullDevice(), {1})]) as worker:
        peer = Peer(worker)
        handle, base = peer.alloc(64)
        peer.compute(row(2, handle, base + 32, op="ADD", sources=(1, 1)), tensors=(row(1, handle, base),))
        assert peer.n_failures == 1


def test_sizes_to_reserve(peer):
    sources = encode_tensor(row(1, 0, 0)) * 2 + bytes(296) * 8
    question = encode_tensor(row(2, 0, 0, op="ADD", sources=(1, 1)))
    assert peer.call(Code.GET_ALLOC_SIZE, bytes(4) + question + sources) == struct.pack("<Q", 32)
    assert peer.call(Code.GET_ALLOC_SIZE, bytes(4) + encode_tensor(row(2, 0, 0)) + bytes(2960)) == struct.pack("<Q", 32)


def test_more_than_may_be_queued_is_held_back(worker, peer):
    handle, base = peer.alloc(4 * MIB)
    record = row(1, handle, base, MIB)
    for _ in range(3):
        peer.write(record, bytes(4 * MIB))
    assert peer.n_failures == 0
    assert worker.service.state.sessions.all()[0].queued_nbytes == 0
    assert calls(worker, "SYNCHRONIZE") >= 12


def test_hello_is_said_once(peer):
    with pytest.raises(RemoteProtocolError, match="said once"):
        peer.call(Code.HELLO, bytes(24))


def test_everything_goes_with_the_session(worker, peer):
    peer.alloc(MIB)
    peer.session.close()
    peer.session.close()
    account = worker.service.state.seats[0].account
    assert (account.used_nbytes, len(worker.service.state.sessions)) == (0, 0)


def test_a_worker_that_closes_ends_its_sessions(worker, peer):
    worker.close()
    assert peer.n_failures == 1
    with pytest.raises(Exception, match="the worker ended"):
        peer.alloc(64)


def test_every_command_has_a_handler():
    assert set(HANDLERS) == set(Code)
