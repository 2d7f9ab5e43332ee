"""Loads seen from the worker: when one begins and ends, and the old way of writing."""

from __future__ import annotations

import pytest

from rpc_backend.graph import Graph, Tensor, build, element_type
from rpc_backend.interfaces import Buffer, BufferUsage, Device, HostBuffer, Memory, Plan, SerialStream, Stream
from rpc_backend.interfaces.device import DeviceInfo
from rpc_backend.load_profile import PREFIX
from rpc_backend.testing.devices import NullDevice
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.worker import WorkerConfig


def placed(buffer: Buffer, nbytes: int, offset: int = 0) -> Tensor:
    tensor = Tensor(element_type("I8"), [nbytes])
    tensor.buffer, tensor.offset = buffer, offset
    return tensor


def connect(load_opt: bool = True, load_profile: bool = True):
    worker = InlineWorker([NullDevice("zero")], WorkerConfig((), load_opt=load_opt, load_profile=load_profile))
    connection = worker.connect()
    return connection, connection.devices()[0]


def compute(device: Device) -> None:
    """Run a graph; nothing is computed."""
    x = build.leaf(element_type("F32"), [4])
    x.buffer = device.alloc_buffer(64)
    y = build.add(x, x)
    y.buffer, y.offset = x.buffer, 32
    stream = device.create_stream()
    stream.compute(device.compile(Graph.of(y)))
    stream.synchronize()


def test_a_load_ends_with_the_first_graph(capsys):
    _, device = connect()
    tensor = placed(device.alloc_buffer(3 << 20, BufferUsage.WEIGHTS), 3 << 20)
    stream = device.create_stream()
    stream.set_tensor(tensor, memoryview(bytes(3 << 20)))
    stream.synchronize()
    assert PREFIX not in capsys.readouterr().err
    compute(device)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{PREFIX} session 1: 2 SET_TENSOR, 3.00 MiB in ")
    for part in ("digest 0.000 s", "staging 0.000 s", "wire ", "gaps ", "write ", "SET_TENSOR 2 calls"):
        assert part in line
    compute(device)
    stream.set_tensor(tensor, memoryview(bytes(1)))
    assert not capsys.readouterr().err


def test_a_load_ends_with_the_session(capsys):
    connection, device = connect()
    device.create_stream().set_tensor(placed(device.alloc_buffer(9, BufferUsage.WEIGHTS), 9), memoryview(bytes(9)))
    connection.close()
    assert ": 1 SET_TENSOR, 9 B in " in capsys.readouterr().err


@pytest.mark.parametrize(("usage", "load_profile"), [(BufferUsage.ANY, True), (BufferUsage.WEIGHTS, False)])
def test_nothing_is_told_of_other_buffers_or_without_the_switch(usage, load_profile, capsys):
    connection, device = connect(load_profile=load_profile)
    device.create_stream().set_tensor(placed(device.alloc_buffer(9, usage), 9), memoryview(bytes(9)))
    compute(device)
    connection.close()
    assert not capsys.readouterr().err


class KeepingDevice(NullDevice):
    """Keeps the memory that writes come from, and is no host device."""

    def __init__(self) -> None:
        super().__init__()
        self.info = DeviceInfo("far", "memory of its own", "gpu")
        self.written: list[memoryview] = []

    def memory(self) -> Memory:
        return Memory(1 << 30, 1 << 30)

    def alloc_buffer(self, nbytes: int, usage: BufferUsage = BufferUsage.ANY) -> Buffer:
        return _KeepingBuffer(self, nbytes, usage)

    def compile(self, graph: Graph) -> Plan:
        raise NotImplementedError

    def create_stream(self) -> Stream:
        return SerialStream(self)


class _KeepingBuffer(HostBuffer):
    def write(self, offset: int, data: memoryview) -> None:
        assert isinstance(self.device, KeepingDevice)
        self.device.written.append(data)
        super().write(offset, data)


@pytest.mark.parametrize("load_opt", [True, False])
def test_a_device_is_given_the_received_bytes_or_in_the_old_way_a_copy(load_opt):
    far = KeepingDevice()
    device = InlineWorker([far], WorkerConfig((), load_opt=load_opt)).connect().devices()[0]
    tensor = placed(device.alloc_buffer(100_000, BufferUsage.WEIGHTS), 100_000)
    stream = device.create_stream()
    stream.set_tensor(tensor, memoryview(bytes(range(250)) * 400))
    out = bytearray(100_000)
    stream.get_tensor(tensor, memoryview(out))
    assert out == bytes(range(250)) * 400
    assert isinstance(far.written[0].obj, bytearray) is not load_opt
