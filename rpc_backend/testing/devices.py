"""Devices that are not real: one that computes nothing, one that fails or dawdles on demand.

Belongs here: doubles of `Device` for tests of this project and of plugin authors. Must not be here: suites.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace

from rpc_backend.errors import ComputeError, ErrorContext
from rpc_backend.graph import Graph, Tensor
from rpc_backend.interfaces import (
    Buffer,
    BufferUsage,
    Device,
    DeviceInfo,
    HostBuffer,
    Memory,
    Plan,
    RunnablePlan,
    SerialStream,
    Stream,
)


class NullPlan(RunnablePlan):
    """Computes nothing and counts how often."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.n_runs = 0
        self.closed = False

    def run(self) -> None:
        self.n_runs += 1

    def close(self) -> None:
        self.closed = True


class NullDevice(Device):
    """Holds buffers in this process's memory, takes every operation, computes none; keeps count of its memory.

    `refused_ops` are names of operations that it does not support; `size_of` says what a tensor takes, if not its
    bytes.
    """

    def __init__(
        self,
        name: str = "null",
        total_nbytes: int = 1 << 30,
        *,
        refused_ops: Collection[str] = (),
        alignment: int = 64,
        size_of: Callable[[Tensor], int] | None = None,
    ) -> None:
        self.info = DeviceInfo(name, "computes nothing", "cpu", alignment=alignment, is_host=True)
        self.total_nbytes = total_nbytes
        self.used_nbytes = 0
        self.refused_ops = refused_ops
        self.size_of = size_of
        self.plans: list[NullPlan] = []

    def memory(self) -> Memory:
        return Memory(self.total_nbytes - self.used_nbytes, self.total_nbytes)

    def alloc_buffer(self, nbytes: int, usage: BufferUsage = BufferUsage.ANY) -> Buffer:
        buffer = _CountedBuffer(self, nbytes, usage)
        self.used_nbytes += nbytes
        return buffer

    def supports_op(self, tensor: Tensor) -> bool:
        return tensor.op is None or tensor.op.name not in self.refused_ops

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.nbytes if self.size_of is None else self.size_of(tensor)

    def compile(self, graph: Graph) -> Plan:
        plan = NullPlan(graph)
        self.plans.append(plan)
        return plan

    def create_stream(self) -> Stream:
        return SerialStream(self)

    def close(self) -> None:
        """Nothing is held."""


class _CountedBuffer(HostBuffer):
    def close(self) -> None:
        if self._bytes is not None and isinstance(self.device, NullDevice):
            self.device.used_nbytes -= self.nbytes
        super().close()


class FailingDevice(Device):
    """A device in front of another: its graph runs of the numbers `fail_on` (from 1) raise, each takes `delay_s` more.

    `error` makes the exception of a failing run from its number; `name` is its own name, if not the other's.
    """

    def __init__(
        self,
        inner: Device,
        fail_on: Collection[int] = (),
        *,
        delay_s: float = 0.0,
        error: Callable[[int], Exception] | None = None,
        name: str = "",
    ) -> None:
        self.inner = inner
        self.info = replace(inner.info, name=name or inner.info.name)
        self.fail_on = fail_on
        self.delay_s = delay_s
        self.error = error or _compute_error
        self.n_runs = 0

    def memory(self) -> Memory:
        return self.inner.memory()

    def alloc_buffer(self, nbytes: int, usage: BufferUsage = BufferUsage.ANY) -> Buffer:
        return self.inner.alloc_buffer(nbytes, usage)

    def alloc_size(self, tensor: Tensor) -> int:
        return self.inner.alloc_size(tensor)

    def supports_op(self, tensor: Tensor) -> bool:
        return self.inner.supports_op(tensor)

    def compile(self, graph: Graph) -> Plan:
        return _FailingPlan(self, self.inner.compile(graph))

    def create_stream(self) -> Stream:
        return SerialStream(self)

    def close(self) -> None:
        self.inner.close()


class _FailingPlan(RunnablePlan):
    def __init__(self, device: FailingDevice, inner: Plan) -> None:
        self.graph = inner.graph
        self._device = device
        self._inner = inner
        self._stream = device.inner.create_stream()

    def run(self) -> None:
        device = self._device
        device.n_runs += 1
        if device.delay_s:
            time.sleep(device.delay_s)
        if device.n_runs in device.fail_on:
            raise device.error(device.n_runs)
        self._stream.compute(self._inner)
        self._stream.synchronize()

    def close(self) -> None:
        self._stream.close()
        self._inner.close()


def _compute_error(number: int) -> Exception:
    return ComputeError(f"graph {number} fails as asked", context=ErrorContext(op="MUL_MAT"))
