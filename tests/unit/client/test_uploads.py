"""Bytes on their way to a worker: chunks, windows, digests, the old way."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from rpc_backend.client import Connection
from rpc_backend.client.uploads import ChunkWork, Load, UploadOptions, digest_of
from rpc_backend.errors import DeadlineError, GraphError, HandleError, WorkerLostError
from rpc_backend.graph import Tensor, element_type
from rpc_backend.interfaces import BufferUsage, Device
from rpc_backend.protocol.commands import FREE_BUFFER
from rpc_backend.protocol.records import BufferRef
from rpc_backend.settings import Settings
from rpc_backend.testing.devices import NullDevice
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.worker import WorkerConfig

Pairs = list[tuple[Tensor, memoryview]]


@pytest.fixture
def small_chunks(monkeypatch) -> int:
    monkeypatch.setattr("rpc_backend.client.device.UPLOAD_CHUNK_NBYTES", 1000)
    return 1000


def worker_of(config: WorkerConfig | None = None) -> InlineWorker:
    return InlineWorker([NullDevice("zero", 16 << 20)], config)


def weights_on(device: Device, sizes: list[int], usage: BufferUsage = BufferUsage.WEIGHTS) -> Pairs:
    """Place tensors of these sizes end to end, each with bytes of its own."""
    buffer = device.alloc_buffer(sum(sizes), usage)
    pairs: Pairs = []
    for number, nbytes in enumerate(sizes):
        tensor = Tensor(element_type("I8"), [nbytes])
        tensor.buffer, tensor.offset = buffer, sum(sizes[:number])
        pairs.append((tensor, np.random.default_rng(number).integers(0, 256, nbytes, np.uint8).data))
    return pairs


def load(device: Device, pairs: Pairs) -> list[int]:
    """Load, and return what was told of the progress."""
    told: list[int] = []
    stream = device.create_stream()
    stream.load_tensors(pairs, told.append)
    stream.synchronize()
    return told


def is_in_place(device: Device, pairs: Pairs) -> bool:
    stream = device.create_stream()
    for tensor, data in pairs:
        out = bytearray(tensor.nbytes)
        stream.get_tensor(tensor, memoryview(out))
        if out != data:
            return False
    return True


def calls(connection: Connection, command: str) -> int:
    counts = connection.counters.snapshot().get(command)
    return 0 if counts is None else counts.calls


def test_tensors_go_out_in_chunks_and_all_bytes_are_told(small_chunks):
    connection = worker_of().connect()
    device = connection.devices()[0]
    pairs = weights_on(device, [2500, 1, 1000])
    assert load(device, pairs) == [1000, 1000, 500, 1, 1000]
    assert is_in_place(device, pairs)
    assert calls(connection, "SET_TENSOR") == 5


def test_more_than_a_batch_arrives_whole(small_chunks, monkeypatch):
    monkeypatch.setattr("rpc_backend.client.uploads._BATCH_NBYTES", 3000)
    connection = worker_of().connect()
    device = connection.devices()[0]
    pairs = weights_on(device, [9999, 12001])
    assert sum(load(device, pairs)) == 22000
    assert is_in_place(device, pairs)


def test_without_a_cache_there_is_no_digest():
    connection = worker_of().connect()
    device = connection.devices()[0]
    load(device, weights_on(device, [11 << 20]))
    assert calls(connection, "SET_TENSOR_HASH") == 0
    assert calls(connection, "SET_TENSOR") == 6


def test_little_is_under_way_while_the_worker_is_busy(small_chunks, monkeypatch):
    monkeypatch.setattr("rpc_backend.client.device._WINDOW_NBYTES", 2000)
    worker = worker_of()
    connection = worker.connect()
    device = connection.devices()[0]
    ((tensor, data),) = weights_on(device, [20_000])
    record = [0, [20_000], [1], 0]
    queue = device._queue  # type: ignore[attr-defined]
    worker.lanes[0].held = True
    queue.enqueue(*(ChunkWork(record, start, data[start : start + 1000], None) for start in range(0, 20_000, 1000)))
    assert calls(connection, "SET_TENSOR") == 4
    assert tensor.nbytes == 20_000


def test_a_warm_cache_saves_the_upload(tmp_path):
    worker = worker_of(WorkerConfig((), cache_folder=tmp_path))
    sizes = [100_000, 4096, 4095, 300_000]
    for n_chunks in (4, 1):  # what is too small to be asked for is sent again
        connection = worker.connect()
        device = connection.devices()[0]
        pairs = weights_on(device, sizes)
        assert sum(load(device, pairs)) == sum(sizes)
        assert is_in_place(device, pairs)
        assert calls(connection, "SET_TENSOR") == n_chunks
        assert calls(connection, "SET_TENSOR_HASH") == 3
        pairs[0][0].location()[0].close()
        connection.close()


def test_only_weights_are_asked_for(tmp_path):
    connection = worker_of(WorkerConfig((), cache_folder=tmp_path)).connect()
    device = connection.devices()[0]
    load(device, weights_on(device, [100_000], BufferUsage.ANY))
    assert calls(connection, "SET_TENSOR_HASH") == 0


def test_many_tensors_are_asked_for_before_the_first_goes_out(tmp_path, monkeypatch):
    order: list[str] = []
    monkeypatch.setattr("rpc_backend.client.uploads.ChunkWork.send", _noting(order, "send", ChunkWork.send))
    connection = worker_of(WorkerConfig((), cache_folder=tmp_path)).connect()
    device = connection.devices()[0]
    monkeypatch.setattr("rpc_backend.client.uploads.digest_of", _noting(order, "digest", digest_of))
    load(device, weights_on(device, [5000] * 40))
    assert order.index("send") >= 16
    assert sorted(order) == ["digest"] * 40 + ["send"] * 40


def _noting(order, what, function):
    def note(*arguments):
        order.append(what)
        return function(*arguments)

    return note


def test_the_old_way_digests_large_tensors_and_sends_them_whole(monkeypatch):
    monkeypatch.setattr("rpc_backend.client.uploads._LEAST_ASKED_UNOPTIMIZED_NBYTES", 3 << 20)
    connection = worker_of(WorkerConfig((), load_opt=False)).connect(Settings(load_opt=False))
    device = connection.devices()[0]
    pairs = weights_on(device, [(3 << 20) - 1, 5 << 20])
    load(device, pairs)
    assert is_in_place(device, pairs)
    assert (calls(connection, "SET_TENSOR_HASH"), calls(connection, "SET_TENSOR")) == (1, 2)


@pytest.mark.parametrize("load_opt", [True, False])
def test_the_profile_counts_what_was_sent(load_opt, monkeypatch, small_chunks):
    monkeypatch.setattr("rpc_backend.client.uploads._LEAST_ASKED_UNOPTIMIZED_NBYTES", 1)
    connection = worker_of().connect(Settings(load_opt=load_opt, loadprof=True))
    device = connection.devices()[0]
    load(device, weights_on(device, [2500]))
    profile = connection.dispatcher.profile
    assert profile is not None
    line = profile.take("w")
    assert f"{3 if load_opt else 1} SET_TENSOR, 2.44 KiB" in line
    assert f"SET_TENSOR {3 if load_opt else 1} calls" in line
    assert ("SET_TENSOR_HASH 1 calls" in line) is not load_opt


def test_bytes_of_another_size_are_refused():
    connection = worker_of().connect()
    device = connection.devices()[0]
    ((tensor, data),) = weights_on(device, [64])
    with pytest.raises(GraphError, match="64 bytes cannot be loaded from 63"):
        device.create_stream().load_tensors([(tensor, data[:-1])], lambda _: None)


def test_an_error_of_a_question_ends_the_load(tmp_path):
    connection = worker_of(WorkerConfig((), cache_folder=tmp_path)).connect()
    device = connection.devices()[0]
    pairs = weights_on(device, [5000, 5000])
    held = pairs[0][0].location()[0]
    connection.dispatcher.post(FREE_BUFFER, BufferRef(held.handle))
    with pytest.raises(HandleError):
        device.create_stream().load_tensors(pairs, lambda _: None)


def test_an_error_of_a_write_is_raised_when_synchronized():
    connection = worker_of().connect()
    device = connection.devices()[0]
    pairs = weights_on(device, [5000, 5000])
    connection.dispatcher.post(FREE_BUFFER, BufferRef(pairs[0][0].location()[0].handle))
    with pytest.raises(HandleError):
        load(device, pairs)


def test_a_lost_worker_ends_the_load():
    worker = worker_of()
    connection = worker.connect()
    device = connection.devices()[0]
    pairs = weights_on(device, [5000])
    connection.dispatcher.abort()
    with pytest.raises(WorkerLostError):
        device.create_stream().load_tensors(pairs, lambda _: None)


def test_what_did_not_go_out_in_time_does_not_go_out_later(small_chunks, monkeypatch):
    monkeypatch.setattr("rpc_backend.client.device._WINDOW_NBYTES", 2000)
    worker = worker_of()
    connection = worker.connect(Settings(command_timeout_ms=50, heartbeat_timeout_ms=200))
    device = connection.devices()[0]
    pairs = weights_on(device, [20_000])
    worker.lanes[0].held = True
    with pytest.raises(DeadlineError, match="no answer within"):
        load(device, pairs)
    worker.lanes[0].release()
    assert calls(connection, "SET_TENSOR") == 4


@pytest.mark.parametrize("nbytes", [0, 1, 999, 1000, 1001, 5000])
def test_the_digest_is_that_of_all_bytes(nbytes, monkeypatch):
    monkeypatch.setattr("rpc_backend.client.uploads._DIGEST_PIECE_NBYTES", 1000)
    data = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    assert digest_of(data.data) == xxhash.xxh3_128(data.tobytes()).digest()


def test_what_is_asked_for():
    small, large = (Load([], memoryview(bytearray(nbytes)), True) for nbytes in (4095, 4096))
    other = Load([], memoryview(bytearray(4096)), False)
    assert [UploadOptions(1, has_content=True).asks_for(each) for each in (small, large, other)] == [False, True, False]
    assert not UploadOptions(1).asks_for(large)
