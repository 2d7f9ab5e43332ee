"""Copies that are queued: within a worker, to it and from it."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from rpc_backend.errors import DeviceError, GraphError, WorkerLostError
from rpc_backend.graph import build, element_type
from rpc_backend.interfaces import SerialStream
from rpc_backend.protocol.records import Result
from rpc_backend.settings import Settings
from rpc_backend.testing.devices import NullDevice
from rpc_backend.testing.inline_worker import InlineWorker

F32 = element_type("F32")


class LocalStream(SerialStream):
    """A stream of this process whose results come when the test says so."""

    def __init__(self) -> None:
        super().__init__(NullDevice("here"))
        self.fetched: Future[memoryview] = Future()
        self.set_when: list[Future[memoryview]] = []
        self.n_synchronized = 0

    def fetch_tensor(self, tensor):
        return self.fetched

    def set_tensor_when(self, tensor, data) -> None:
        self.set_when.append(data)

    def synchronize(self) -> None:
        self.n_synchronized += 1


def placed(device, value: float | None = None, ne=(16,)):
    tensor = build.leaf(F32, ne)
    tensor.buffer = device.alloc_buffer(64)
    if value is not None:
        tensor.buffer.write(0, filled(value))
    return tensor


def filled(value: float) -> memoryview:
    return memoryview(np.full(16, value, np.float32)).cast("B")


def read(stream, tensor) -> float:
    out = np.empty(16, np.float32)
    stream.get_tensor(tensor, memoryview(out))
    return float(out[0])


def calls(connection, *names: str) -> list[int]:
    counts = connection.counters.snapshot()
    return [counts[name].calls if name in counts else 0 for name in names]


@pytest.fixture
def streams(connection):
    return [device.create_stream() for device in connection.devices()]


def test_from_this_process_it_is_sent_when_it_is_computed(connection, streams):
    local, stream = LocalStream(), streams[0]
    source, target = placed(local.device), placed(stream.device, 1)
    before = stream.fetch_tensor(target)
    n_sent = calls(connection, "SET_TENSOR")
    assert stream.copy_tensor_async(local, source, stream, target)
    after = stream.fetch_tensor(target)
    assert calls(connection, "SET_TENSOR") == n_sent
    assert not after.done()
    local.fetched.set_result(filled(7))
    assert [np.frombuffer(each.result(0), np.float32)[0] for each in (before, after)] == [1, 7]
    assert local.n_synchronized == 0


@pytest.mark.parametrize("kind", [DeviceError, WorkerLostError])
def test_an_error_of_the_source_is_the_streams(streams, kind):
    local, stream = LocalStream(), streams[0]
    assert stream.copy_tensor_async(local, placed(local.device), stream, placed(stream.device))
    local.fetched.set_exception(kind("the source broke"))
    with pytest.raises(kind, match="the source broke"):
        stream.synchronize()
    stream.synchronize()


def test_to_this_process_it_goes_on_the_stream_there(connection, worker, streams):
    local, stream = LocalStream(), streams[0]
    source, target = placed(stream.device, 3), placed(local.device)
    worker.network.hold()
    assert stream.copy_tensor_async(stream, source, local, target)
    assert not local.set_when[0].done()
    worker.network.release()
    assert np.frombuffer(local.set_when[0].result(0), np.float32)[0] == 3
    assert calls(connection, "GET_TENSORS", "SYNCHRONIZE") == [1, 0]


def test_to_a_stream_that_queues_nothing(streams):
    here = NullDevice("here")
    local, stream = SerialStream(here), streams[0]
    source, target = placed(stream.device, 4), placed(here)
    assert stream.copy_tensor_async(stream, source, local, target)
    assert read(local, target) == 4


def test_a_tensor_of_many_chunks(connection, monkeypatch):
    monkeypatch.setattr("rpc_backend.client.transfers.UPLOAD_CHUNK_NBYTES", 24)
    stream = connection.devices()[0].create_stream()
    local = LocalStream()
    target = placed(stream.device)
    assert stream.copy_tensor_async(local, placed(local.device), stream, target)
    data = np.arange(16, dtype=np.float32)
    local.fetched.set_result(memoryview(data))
    out = np.empty(16, np.float32)
    stream.get_tensor(target, memoryview(out))
    assert (out == data).all()
    assert calls(connection, "SET_TENSOR") == [3]


def test_bytes_of_another_size_are_refused(streams):
    data: Future[memoryview] = Future()
    data.set_result(memoryview(bytes(60)))
    streams[0].set_tensor_when(placed(streams[0].device), data)
    with pytest.raises(GraphError, match="64 bytes cannot be written with 60"):
        streams[0].synchronize()


def test_within_a_device(connection, streams):
    stream = streams[0]
    source, target = placed(stream.device, 5), placed(stream.device)
    assert stream.copy_tensor_async(stream, source, stream, target)
    assert read(stream, target) == 5
    assert calls(connection, "COPY_TENSOR", "EVENT_RECORD") == [1, 0]


def test_between_devices_of_a_worker(connection, streams):
    one, two = streams
    source, target = placed(one.device, 8), placed(two.device)
    assert two.copy_tensor_async(one, source, two, target)
    assert calls(connection, "EVENT_RECORD", "EVENT_WAIT") == [2, 2]
    assert read(two, target) == 8


def test_the_copy_waits_for_its_source_and_the_source_for_the_copy(connection, worker, streams):
    one, two = streams
    source, target = placed(one.device, 6), placed(two.device)
    worker.lanes[1].held = True
    assert two.copy_tensor_async(one, source, two, target)
    data: Future[memoryview] = Future()
    data.set_result(filled(9))
    one.set_tensor_when(source, data)  # must not be seen by the copy
    later = one.fetch_tensor(source)
    assert not later.done()
    worker.network.hold()
    worker.lanes[1].release()
    worker.network.release()
    assert np.frombuffer(later.result(0), np.float32)[0] == 9
    assert read(two, target) == 6


def test_a_worker_that_declines_is_an_error_of_the_stream(streams, monkeypatch):
    one, two = streams
    source, target = placed(one.device, 6), placed(two.device)
    monkeypatch.setattr("rpc_backend.worker.handlers.tensors.Result", lambda _: Result(False))
    assert two.copy_tensor_async(one, source, two, target)
    with pytest.raises(DeviceError, match="declined to copy; ZMQ_RPC_NO_ASYNC_COPY=1"):
        two.synchronize()


def test_what_cannot_be_copied_is_declined(worker, connection, streams):
    stream = streams[0]
    target = placed(stream.device)
    far = InlineWorker([NullDevice()]).connect().devices()[0].create_stream()
    assert not stream.copy_tensor_async(far, placed(far.device), stream, target)
    assert not far.copy_tensor_async(far, placed(far.device), stream, target)
    assert not stream.copy_tensor_async(stream, placed(stream.device, ne=(8, 2)), stream, target)
    here = [LocalStream(), LocalStream()]
    assert not stream.copy_tensor_async(here[0], placed(here[0].device), here[1], placed(here[1].device))
    old = [device.create_stream() for device in worker.connect(Settings(proto_minor=3)).devices()]
    pair = placed(old[0].device, 1), placed(old[1].device)
    assert old[1].copy_tensor(*pair)
    assert not old[1].copy_tensor_async(old[0], pair[0], old[1], pair[1])


def test_declined_by_switch(worker):
    stream = worker.connect(Settings(no_async_copy=True)).devices()[0].create_stream()
    local = LocalStream()
    pair = placed(local.device), placed(stream.device)
    assert not stream.copy_tensor_async(local, pair[0], stream, pair[1])
    assert not stream.copy_tensor_async(stream, pair[1], local, pair[0])
