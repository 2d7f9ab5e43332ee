"""Kernels touch the parts that plans take each thread to touch, and no others: no thread waits for what is its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rpc_backend.graph import Glu, Tensor, build
from rpc_backend.graph.element_types import F32, Q4_K, Q8_0
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import HostBuffer
from rpc_backend.registry import load_registry
from rpc_backend.testing.devices import NullDevice
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.code import as_callable
from rpc_backend_numba.device import NumbaDevice
from rpc_backend_numba.library import KernelLibrary
from rpc_backend_numba.lowering import LOWERINGS
from rpc_backend_numba.lowering.fusion import groups_of
from rpc_backend_numba.table import Table

THREADS = 3
Make = Callable[[int], list[Tensor]]
"""Makes tensors for so many columns: leaves, then nodes."""


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    (device,) = load_registry().create_devices("numba", DeviceOptions(threads=1))
    assert isinstance(device, NumbaDevice)
    return device._library


def binary(columns: int) -> list[Tensor]:
    a, b = build.leaf(F32, (96, columns)), build.leaf(F32, (96, columns))
    return [a, b, build.sub(a, b)]


def gated(columns: int) -> list[Tensor]:
    a, b = build.leaf(F32, (96, columns)), build.leaf(F32, (96, columns))
    return [a, b, build.glu(Glu.SWIGLU, a, b)]


def inputs(columns: int) -> list[Tensor]:
    weights, x = build.leaf(Q8_0, (160, 4)), build.leaf(F32, (160, columns))
    return [x, weights, build.mul_mat(weights, x)]


def block_inputs(columns: int) -> list[Tensor]:
    weights, x = build.leaf(Q4_K, (512, 4)), build.leaf(F32, (512, columns))
    return [x, weights, build.mul_mat(weights, x)]


def chain(columns: int) -> list[Tensor]:
    x, weights = build.leaf(F32, (96, columns)), build.leaf(F32, (96,))
    norm = build.rms_norm(x, 1e-5)
    return [x, weights, norm, build.mul(norm, weights)]


@pytest.mark.parametrize("make", [binary, gated, inputs, block_inputs, chain])
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 7])
def test_a_thread_needs_and_writes_its_parts_only(library: KernelLibrary, make: Make, columns: int) -> None:
    buffer = HostBuffer(NullDevice(), 1 << 18)
    tensors = make(columns)
    for index, tensor in enumerate(tensors):
        tensor.buffer, tensor.offset = buffer, index << 14
    nodes = [tensor for tensor in tensors if tensor.op is not None]
    builder = PlanBuilder(library.target.lanes)
    for positions, fusion in groups_of(nodes):
        builder.start_nodes(positions)
        group = [nodes[index] for index in positions]
        if fusion is not None:
            fusion.emit(builder, group)
        elif group[0].op is not None:
            LOWERINGS[group[0].op.name].emit(builder, group[0])
    table, row = Table(builder, library, THREADS), builder.rows[0]
    call, code = table.calls()[0], row.kernel
    assert any(span.parts for span in row.reads + row.writes), f"{code} has no parts"
    kernel = as_callable(call.code, 3)
    before = np.frombuffer(np.random.default_rng(3).standard_normal(1 << 16).astype(np.float32), np.uint8)

    def outcome(thread: int, memory: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        buffer.bytes[:] = memory
        table._shared[:] = 0
        kernel(call.arguments, thread, THREADS)
        return buffer.bytes.copy(), table._shared.copy()

    for thread in range(THREADS):
        expected = outcome(thread, before)
        poisoned = before.copy()
        mine = np.zeros(len(before), bool)
        shared_ranges = [span for span in (*row.reads, *row.writes) if span.parts is not None]
        for span in shared_ranges:
            assert isinstance(span.start, int)
            assert span.parts is not None
            base = span.start - buffer.address
            first, last = (min(place, span.nbytes) for place in span.parts.of(thread, THREADS))
            poisoned[base : base + first] = poisoned[base + last : base + span.nbytes] = 0xFF
            mine[base + first : base + last] = True
        found = outcome(thread, poisoned)
        np.testing.assert_array_equal(found[0][~mine], poisoned[~mine], err_msg=f"{code} writes what is another's")
        np.testing.assert_array_equal(found[0][mine], expected[0][mine], err_msg=f"{code} reads what is another's")
        np.testing.assert_array_equal(found[1], expected[1], err_msg=f"{code} reads what is another's")
