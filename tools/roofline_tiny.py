"""What an operation costs beyond its own work: a graph of many tiny ones.

Belongs here: building and timing that graph. Must not be here: printing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import types

from rpc_backend.graph import Graph, element_type
from rpc_backend.graph.build import add, leaf
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.host.placement import place_leaves
from rpc_backend.interfaces import BufferUsage
from rpc_backend.registry import load_registry
from rpc_backend_numba.atomics import code_call
from rpc_backend_numba.code import CodeLoader, as_callable
from rpc_backend_numba.compile import compile_function
from rpc_backend_numba.plan import NumbaPlan
from rpc_backend_numba.simd import load_at
from rpc_backend_numba.targets import Target

N_OPS = 1000
N_ELEMENTS = 16
_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class TinyOps:
    """Microseconds per operation: in the graph, and of its kernel called in a loop."""

    threads: int
    op_us: float
    kernel_us: float

    @property
    def overhead_us(self) -> float:
        return self.op_us - self.kernel_us


def measure_tiny_ops(target: Target, threads: int) -> TinyOps:
    """Time a chain of additions, each of the result before, so that threads must meet after every one."""
    options = DeviceOptions(threads=threads, extra={"cpu_features": target.name})
    (device,) = load_registry().create_devices("numba", options)
    try:
        first = leaf(element_type("F32"), (N_ELEMENTS,))
        tensors = [first]
        for _ in range(N_OPS):
            tensors.append(add(tensors[-1], first))
        buffers = place_leaves(device, tensors, BufferUsage.ANY)
        for buffer in buffers:
            buffer.fill(0, buffer.nbytes, 0)
        plan = device.compile(Graph([tensor for tensor in tensors if tensor.op is not None]))
        assert isinstance(plan, NumbaPlan), "the numba backend makes such plans"
        op_s = min(_timed(plan) for _ in range(_ROUNDS)) / N_OPS
        kernel_s = _kernels_s(plan, target) / N_OPS
        for buffer in buffers:
            buffer.close()
    finally:
        device.close()
    return TinyOps(threads, op_s * 1e6, kernel_s * 1e6)


def _timed(plan: NumbaPlan) -> float:
    started = time.perf_counter()
    plan.run()
    return time.perf_counter() - started


def _kernels_s(plan: NumbaPlan, target: Target) -> float:
    """Return the least time of all rows' kernels, called one after the other by a plain loop."""
    loader = CodeLoader(target)
    loop = as_callable(loader.load(*compile_function(_make_loop(), 2, loader.machine)), 2)
    table = np.array([[step.call.code, step.call.arguments] for step in plan.steps()], np.int64)
    times: list[float] = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        loop(table.ctypes.data, len(table))
        times.append(time.perf_counter() - started)
    return min(times)


def _make_loop() -> Callable[..., None]:
    call_kernel, I64 = code_call(3), types.int64

    def loop(table, n):
        for row in range(0, 2 * n, 2):
            call_kernel(load_at(I64, table, row), load_at(I64, table, row + 1), 0, 1)

    return loop
