"""Queued reads: one message for all that stand next to each other, of any number and size."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.errors import ComputeError, GraphError, LimitError, RemoteProtocolError
from rpc_backend.graph import Graph, build, element_type
from rpc_backend.settings import Settings
from rpc_backend.testing.devices import NullDevice
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.worker import WorkerConfig

F32 = element_type("F32")


def placed(device, n: int):
    tensor = build.leaf(F32, [n])
    tensor.buffer = device.alloc_buffer(4 * n)
    return tensor


def calls(connection, *names: str) -> list[int]:
    counts = connection.counters.snapshot()
    return [counts[name].calls if name in counts else 0 for name in names]


def filled(stream, sizes):
    """Tensors of these sizes, each full of its own number, and memory to read them into."""
    tensors = [placed(stream.device, n) for n in sizes]
    for index, (tensor, n) in enumerate(zip(tensors, sizes, strict=True)):
        stream.set_tensor(tensor, memoryview(np.full(n, index, np.float32)))
    return tensors, [np.full(n, -1, np.float32) for n in sizes]


def is_read(outs) -> bool:
    return all((out == index).all() for index, out in enumerate(outs))


@pytest.fixture
def stream(connection):
    return connection.devices()[0].create_stream()


@pytest.mark.parametrize("sizes", [[], [0], [16], [1, 0, 300, 0, 0, 7], [3] * 200])
def test_any_number_of_any_sizes_is_one_message(connection, stream, sizes):
    tensors, outs = filled(stream, sizes)
    for tensor, out in zip(tensors, outs, strict=True):
        stream.get_tensor_async(tensor, memoryview(out))
    assert calls(connection, "GET_TENSORS") == [0]
    stream.synchronize()
    assert is_read(outs)
    assert calls(connection, "GET_TENSORS", "GET_TENSOR") == [min(1, len(sizes)), 0]


@pytest.mark.parametrize("settings", [Settings(proto_minor=1), Settings(no_batched_get=True)])
def test_single_reads_of_an_older_worker_or_by_switch(worker, settings):
    connection = worker.connect(settings)
    stream = connection.devices()[0].create_stream()
    tensors, outs = filled(stream, [1, 0, 300])
    for tensor, out in zip(tensors, outs, strict=True):
        stream.get_tensor_async(tensor, memoryview(out))
    stream.synchronize()
    assert is_read(outs)
    assert calls(connection, "GET_TENSORS", "GET_TENSOR") == [0, 3]


def test_a_part_of_a_tensor_and_a_part_outside(stream):
    (tensor,), _ = filled(stream, [16])
    stream.set_tensor(tensor, memoryview(b"1234"), 8)
    out = bytearray(6)
    stream.get_tensor_async(tensor, memoryview(out), 7)
    with pytest.raises(GraphError, match="outside"):
        stream.get_tensor_async(tensor, memoryview(out), 60)
    stream.synchronize()
    assert out == b"\x001234\x00"


def test_only_the_record_is_kept(stream):
    tensors, outs = filled(stream, [16, 16])
    for tensor, out in zip(tensors, outs, strict=True):
        stream.get_tensor_async(tensor, memoryview(out))
        tensor.ne, tensor.name = (1, 1, 1, 1), "changed"
    del tensors, tensor
    stream.synchronize()
    assert is_read(outs)


def commands_that_keep_their_place(stream):
    """Each writes 9 over the tensor, or runs something, after the reads that were queued before."""
    nine = memoryview(np.full(16, 9, np.float32))
    tensor = placed(stream.device, 16)
    x = placed(stream.device, 32)
    y = build.add(x, x)
    y.buffer = x.buffer
    plan = stream.device.compile(Graph.of(y))
    task = stream.device.prepare_task(Graph.of(y))
    from rpc_backend.interfaces import TaskRun

    return tensor, {
        "set": lambda: stream.set_tensor(tensor, nine),
        "fill": lambda: tensor.buffer.fill(0, 64, 9),
        "compute": lambda: stream.compute(plan),
        "submit": lambda: stream.submit(task, TaskRun()),
        "copy": lambda: stream.copy_tensor(placed(stream.device, 16), tensor),
        "record": lambda: stream.record(stream.device.create_event()),
        "get": lambda: stream.get_tensor(tensor, memoryview(bytearray(64))),
        "fetch": lambda: stream.fetch_tensor(tensor),
        "alloc": lambda: stream.device.alloc_buffer(16),
    }


@pytest.mark.parametrize("command", ["set", "fill", "compute", "submit", "copy", "record", "get", "fetch", "alloc"])
def test_a_command_that_keeps_its_place_takes_the_reads_along(connection, stream, command):
    tensor, commands = commands_that_keep_their_place(stream)
    stream.set_tensor(tensor, memoryview(np.full(16, 1, np.float32)))
    outs = [np.zeros(16, np.float32) for _ in range(3)]
    for out in outs:
        stream.get_tensor_async(tensor, memoryview(out))
    commands[command]()
    assert calls(connection, "GET_TENSORS") == [1]
    stream.get_tensor_async(tensor, memoryview(bytearray(64)))
    stream.synchronize()
    assert all((out == 1).all() for out in outs)
    assert calls(connection, "GET_TENSORS") == [2]


def test_reads_that_do_not_fit_in_one_answer_are_as_few_as_can_be():
    worker = InlineWorker([NullDevice()], WorkerConfig((), max_payload_nbytes=1000))
    connection = worker.connect()
    stream = connection.devices()[0].create_stream()
    tensors, outs = filled(stream, [200, 0, 600, 50, 100, 100])  # 4200 bytes
    for tensor, out in zip(tensors, outs, strict=True):
        stream.get_tensor_async(tensor, memoryview(out))
    stream.synchronize()
    assert is_read(outs)
    assert calls(connection, "GET_TENSORS") == [5]


def test_very_many_reads_are_split(connection, stream, monkeypatch):
    monkeypatch.setattr("rpc_backend.client.reads.MAX_PIECES", 10)
    tensors, outs = filled(stream, [2] * 25)
    for tensor, out in zip(tensors, outs, strict=True):
        stream.get_tensor_async(tensor, memoryview(out))
    stream.synchronize()
    assert is_read(outs)
    assert calls(connection, "GET_TENSORS") == [3]


def test_futures_ride_along(connection, stream):
    tensors, outs = filled(stream, [16, 8])
    stream.get_tensor_async(tensors[0], memoryview(outs[0]))
    future = stream.fetch_tensor(tensors[1])
    assert np.frombuffer(future.result(0), np.float32)[0] == 1
    assert calls(connection, "GET_TENSORS") == [1]
    stream.synchronize()
    assert (outs[0] == 0).all()


def test_the_answer_to_reads_is_a_round_trip_too(connection, worker, stream):
    (tensor,), (out,) = filled(stream, [16])
    stream.synchronize()
    n_synchronize = calls(connection, "SYNCHRONIZE")
    worker.network.hold()
    stream.get_tensor_async(tensor, memoryview(out))
    event = stream.device.create_event()
    stream.fetch_tensor(tensor).add_done_callback(lambda _: event.close())
    worker.network.release()
    assert calls(connection, "SYNCHRONIZE") == n_synchronize


def failing(stream, backends):
    x = placed(stream.device, 16)
    y = build.add(x, x)
    y.buffer = x.buffer
    backends[0].fail_on = {1}
    stream.compute(stream.device.compile(Graph.of(y)))
    return x


def test_an_error_is_raised_by_the_next_synchronising_call_and_nothing_is_filled(stream, backends):
    x = failing(stream, backends)
    out = np.full(16, -1, np.float32)
    stream.get_tensor_async(x, memoryview(out))
    with pytest.raises(ComputeError):
        stream.synchronize()
    assert (out == -1).all()
    stream.get_tensor_async(x, memoryview(out))
    stream.synchronize()
    assert (out == 0).all()


def test_an_error_of_a_future_is_raised_there_only(stream, backends):
    x = failing(stream, backends)
    assert isinstance(stream.fetch_tensor(x).exception(0), ComputeError)
    stream.synchronize()
    assert stream.fetch_tensor(x).exception(0) is None


def test_a_read_outside_a_buffer_is_the_workers_error(stream):
    tensor = placed(stream.device, 16)
    tensor.offset = 8
    stream.get_tensor_async(tensor, memoryview(bytearray(64)))
    with pytest.raises(GraphError, match="outside its buffer"):
        stream.synchronize()


@pytest.mark.parametrize("nbytes", [63, 65])
def test_an_answer_of_another_size_is_refused(stream, monkeypatch, nbytes):
    monkeypatch.setattr("rpc_backend.worker.handlers.tensors.read_places", lambda places, _: memoryview(bytes(nbytes)))
    tensor = placed(stream.device, 16)
    stream.get_tensor_async(tensor, memoryview(bytearray(64)))
    with pytest.raises(RemoteProtocolError, match=f"64 bytes were asked for and {nbytes} came"):
        stream.synchronize()


def test_a_request_that_is_too_large_is_an_error_of_the_stream(connection, stream):
    tensor = placed(stream.device, 16)
    tensor.name = "x" * (17 << 20)
    stream.get_tensor_async(tensor, memoryview(bytearray(64)))
    with pytest.raises(LimitError):
        stream.synchronize()
    tensor.name = ""
    stream.get_tensor_async(tensor, memoryview(bytearray(64)))
    stream.synchronize()
    assert calls(connection, "GET_TENSORS") == [1]
