from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.errors import ComputeError, GraphError, HandleError, WorkerLostError
from rpc_backend.graph import Graph, build, element_type
from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.worker import WorkerConfig

F32 = element_type("F32")


def placed(device, ne=(16,), nbytes=64):
    tensor = build.leaf(F32, ne)
    tensor.buffer = device.alloc_buffer(nbytes)
    return tensor


def read(stream, tensor) -> bytes:
    out = bytearray(tensor.nbytes)
    stream.get_tensor(tensor, memoryview(out))
    return bytes(out)


def plan_on(device):
    x = placed(device, nbytes=128)
    y = build.add(x, x)
    y.buffer, y.offset = x.buffer, 64
    return device.compile(Graph.of(y))


def calls(connection) -> dict[str, int]:
    return {name: counts.calls for name, counts in connection.counters.snapshot().items()}


@pytest.fixture
def device(connection):
    return connection.devices()[0]


@pytest.fixture
def stream(device):
    return device.create_stream()


# Bytes


def test_bytes_of_a_part_of_a_tensor(device, stream):
    tensor = placed(device)
    stream.set_tensor(tensor, memoryview(bytes(64)))
    stream.set_tensor(tensor, memoryview(b"1234"), 8)
    assert read(stream, tensor) == bytes(8) + b"1234" + bytes(52)
    out = bytearray(2)
    stream.get_tensor(tensor, memoryview(out), 9)
    assert out == b"23"


def test_bytes_of_a_view_go_into_its_source(device, stream):
    tensor = placed(device)
    stream.set_tensor(tensor, memoryview(bytes(64)))
    stream.set_tensor(build.view(tensor, [2], offset_bytes=16), memoryview(b"x" * 8))
    assert read(stream, tensor) == bytes(16) + b"x" * 8 + bytes(40)


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 1), (0, 65), (64, 1), (1 << 64, 1)])
def test_a_range_outside_a_tensor_is_refused_here(connection, device, stream, offset, nbytes):
    tensor, data = placed(device), memoryview(bytearray(nbytes))
    before = calls(connection)
    for access in (stream.set_tensor, stream.get_tensor):
        with pytest.raises(GraphError, match="outside"):
            access(tensor, data, offset)
    assert calls(connection) == before


def test_much_goes_in_parts_with_a_bounded_part_under_way():
    config = WorkerConfig((), max_payload_nbytes=1000, max_queued_nbytes=8000)
    connection = InlineWorker([NullDevice("big", 1 << 30)], config).connect()
    device = connection.devices()[0]
    buffer = device.alloc_buffer(10_500)
    data = bytes(range(250)) * 42
    buffer.write(0, memoryview(data))
    out = bytearray(10_500)
    buffer.read_into(0, memoryview(out))
    assert bytes(out) == data
    assert calls(connection)["SET_TENSOR"] == 11
    assert calls(connection)["GET_TENSOR"] == 11
    assert calls(connection)["SYNCHRONIZE"] >= 5


def test_an_empty_tensor_has_no_bytes(device, stream):
    tensor = placed(device, (0, 4), 0)
    for nothing in (memoryview(b""), memoryview(np.empty((0, 4), np.float32))):
        stream.set_tensor(tensor, nothing)
        stream.get_tensor(tensor, nothing)


# Copies


def test_a_copy_within_a_device_and_to_another_of_the_worker(connection, device, stream):
    source, near, far = placed(device), placed(device), placed(connection.devices()[1])
    stream.set_tensor(source, memoryview(b"abcd" * 16))
    assert stream.copy_tensor(source, near)
    other = connection.devices()[1].create_stream()
    assert other.copy_tensor(source, far)
    assert read(stream, near) == read(other, far) == b"abcd" * 16
    assert "GET_TENSOR" in calls(connection)


def test_a_copy_from_elsewhere_or_between_layouts_is_declined(worker, device, stream):
    target = placed(device)
    here = build.leaf(F32, [16])
    here.buffer = HostBuffer(NullDevice("here"), 64)
    stranger = placed(worker.connect().devices()[0])
    for source in (here, stranger, placed(device, (8, 2)), build.leaf(F32, [16])):
        assert not stream.copy_tensor(source, target)


# Graphs


def test_a_graph_is_sent_whole_once_and_by_digest_afterwards(connection, backends, device, stream):
    plan = plan_on(device)
    for _ in range(4):
        stream.compute(plan)
    stream.synchronize()
    assert backends[0].n_runs == 4
    assert calls(connection)["GRAPH_COMPUTE"] == 1
    assert calls(connection)["GRAPH_RECOMPUTE"] == 3


def test_a_graph_that_the_worker_forgot_is_sent_again_in_its_place(backends):
    worker = InlineWorker(backends, WorkerConfig((), graphs_per_stream=1))
    connection = worker.connect()
    device = connection.devices()[0]
    stream = device.create_stream()
    plans = [plan_on(device), plan_on(device)]
    for _ in range(3):
        for plan in plans:
            stream.compute(plan)
    stream.synchronize()
    assert backends[0].n_runs == 6
    assert calls(connection)["GRAPH_COMPUTE"] == 6


def test_a_plan_over_a_freed_buffer_is_never_run_again(backends, device, stream):
    plan = plan_on(device)
    stream.compute(plan)
    plan.graph.nodes[0].buffer.close()
    device.alloc_buffer(128)
    stream.compute(plan)
    with pytest.raises(HandleError, match="was freed"):
        stream.synchronize()
    assert backends[0].n_runs == 1


def test_another_devices_plan_is_refused(connection, device, stream):
    with pytest.raises(GraphError, match="not compiled by zero@inline"):
        stream.compute(plan_on(connection.devices()[1]))


# Errors


@pytest.mark.parametrize("failing", [1, 3])
def test_an_error_is_raised_once_by_the_next_synchronising_call(backends, device, stream, failing):
    backends[0].fail_on = {failing}
    plan, tensor = plan_on(device), placed(device)
    stream.set_tensor(tensor, memoryview(b"a" * 64))
    for _ in range(failing):
        stream.compute(plan)
    stream.set_tensor(tensor, memoryview(b"b" * 64))
    stream.compute(plan)
    with pytest.raises(ComputeError, match=f"graph {failing} fails") as caught:
        read(stream, tensor)
    assert caught.value.context.op == "MUL_MAT"
    assert backends[0].n_runs == failing
    assert read(stream, tensor) == b"a" * 64
    stream.compute(plan)
    stream.synchronize()
    assert backends[0].n_runs == failing + 1


def test_an_error_during_an_upload_ends_it_and_waits_to_be_raised(connection, device, stream):
    big = build.leaf(F32, [1 << 20])
    big.buffer = device.alloc_buffer(64)
    stream.set_tensor(big, memoryview(bytes(4 << 20)))
    stream.set_tensor(big, memoryview(bytes(4 << 20)))
    stream.set_tensor(big, memoryview(bytes(4 << 20)))
    assert calls(connection)["SET_TENSOR"] <= 4
    with pytest.raises(GraphError, match="outside its buffer"):
        stream.synchronize()
    stream.synchronize()


def test_allocating_and_freeing_work_while_an_error_waits(backends, device, stream):
    backends[0].fail_on = {1}
    buffer = device.alloc_buffer(1000)
    stream.compute(plan_on(device))
    buffer.close()
    device.alloc_buffer(10).close()
    assert device.memory().free_nbytes == (1 << 20) - 128
    with pytest.raises(ComputeError):
        stream.synchronize()


def test_devices_fail_apart(connection, backends, device, stream):
    backends[0].fail_on = {1}
    stream.compute(plan_on(device))
    other = connection.devices()[1]
    tensor = placed(other)
    other.create_stream().set_tensor(tensor, memoryview(b"x" * 64))
    assert read(other.create_stream(), tensor) == b"x" * 64
    with pytest.raises(ComputeError):
        stream.synchronize()


def test_a_lost_worker_is_named_by_every_call(worker, connection, device, stream):
    tensor = placed(device)
    worker.network.cut(connection.dispatcher._channel)
    for call in (stream.synchronize, lambda: stream.set_tensor(tensor, memoryview(bytes(64))), device.memory):
        with pytest.raises(WorkerLostError, match="inline"):
            call()
    tensor.buffer.close()
    stream.close()
