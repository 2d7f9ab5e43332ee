"""A device for the tests of this folder: the reference backend, watched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import pytest

from rpc_backend.errors import ComputeError, OutOfMemoryError
from rpc_backend.graph import Graph, Tensor, build, check_graph, element_type
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import Buffer, BufferUsage, Device, HostBuffer, Memory, RunnablePlan, SerialStream
from rpc_backend.registry import load_registry

REFERENCE = load_registry().create_devices("reference", DeviceOptions())[0]


class IsolatedBuffer(HostBuffer):
    """Memory that no other buffer can be copied from or to directly."""

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False


class CheckedDevice(Device):
    """The reference backend under another name; it refuses graphs that mention memory of another device.

    Fresh memory is filled with 0xFF, which is NaN in every float type.
    """

    def __init__(self, name: str, *, isolated: bool = False, limit_nbytes: int = 2**40, lacks: str = "") -> None:
        self.info = replace(REFERENCE.info, name=name)
        self.limit_nbytes, self.lacks = limit_nbytes, lacks
        self.kind = IsolatedBuffer if isolated else HostBuffer
        self.buffers: list[HostBuffer] = []
        self.graphs: list[Graph] = []
        self.n_streams = self.n_open_plans = 0
        self.fail: ComputeError | None = None

    def memory(self) -> Memory:
        return Memory(self.limit_nbytes, self.limit_nbytes)

    def alloc_buffer(self, nbytes: int, usage: BufferUsage = BufferUsage.ANY) -> HostBuffer:
        if nbytes > self.limit_nbytes:
            raise OutOfMemoryError(f"asked for {nbytes}, free {self.limit_nbytes}")
        buffer = self.kind(self, nbytes, usage)
        buffer.fill(0, nbytes, 0xFF)
        self.buffers.append(buffer)
        return buffer

    def supports_op(self, tensor: Tensor) -> bool:
        return tensor.op is not None and tensor.op.name != self.lacks and REFERENCE.supports_op(tensor)

    def compile(self, graph: Graph) -> CheckedPlan:
        check_graph(graph)
        for tensor in graph.tensors():
            assert tensor.location()[0].device is self, f"{tensor} lies on another device"
        self.graphs.append(graph)
        self.n_open_plans += 1
        return CheckedPlan(self, graph)

    def create_stream(self) -> SerialStream:
        self.n_streams += 1
        return SerialStream(self)

    def close(self) -> None:
        """Nothing is held."""

    def put(self, name: str, values: npt.NDArray[Any]) -> Tensor:
        """Return an F32 leaf with these values in memory of this device."""
        tensor = build.leaf(element_type("F32"), values.shape[::-1], name)
        buffer = self.alloc_buffer(tensor.nbytes, BufferUsage.WEIGHTS)
        buffer.write(0, values.data)
        tensor.buffer = buffer
        return tensor


class CheckedPlan(RunnablePlan):
    def __init__(self, device: CheckedDevice, graph: Graph) -> None:
        self.device, self.graph = device, graph
        compiled = REFERENCE.compile(graph)
        assert isinstance(compiled, RunnablePlan)
        self._compiled = compiled

    def run(self) -> None:
        failure, self.device.fail = self.device.fail, None
        if failure is not None:
            raise failure
        self._compiled.run()

    def close(self) -> None:
        self.device.n_open_plans -= 1


@pytest.fixture(scope="session")
def checked() -> Callable[..., list[CheckedDevice]]:
    """Return a function that makes some devices `d0`, `d1`, … with the options of `CheckedDevice`."""
    return _checked


def _checked(count: int, **options: Any) -> list[CheckedDevice]:
    return [CheckedDevice(f"d{index}", **options) for index in range(count)]
