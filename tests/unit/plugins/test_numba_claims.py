"""Threads claim work: whoever comes first does it, each bit once, and the counters are ready for the next run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from rpc_backend.graph import Tensor, build
from rpc_backend.graph.element_types import F16, F32, Q8_0
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import HostBuffer
from rpc_backend.registry import load_registry
from rpc_backend.testing.devices import NullDevice
from rpc_backend_numba import layout
from rpc_backend_numba.arguments import Claims
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.code import as_callable
from rpc_backend_numba.device import NumbaDevice
from rpc_backend_numba.library import KernelLibrary
from rpc_backend_numba.lowering import LOWERINGS
from rpc_backend_numba.table import Table

THREADS = 3
Bytes = npt.NDArray[np.uint8]


@pytest.fixture(scope="module")
def library() -> KernelLibrary:
    (device,) = load_registry().create_devices("numba", DeviceOptions(threads=1))
    assert isinstance(device, NumbaDevice)
    return device._library


def product(columns: int) -> list[Tensor]:
    weights, x = build.leaf(Q8_0, (256, 400)), build.leaf(F32, (256, columns))
    return [weights, x, build.mul_mat(weights, x)]


def float_product(columns: int) -> list[Tensor]:
    weights, x = build.leaf(F16, (256, 400)), build.leaf(F32, (256, columns))
    return [weights, x, build.mul_mat(weights, x)]


def attention(columns: int) -> list[Tensor]:
    q = build.leaf(F32, (32, columns, 6))
    k, v = build.leaf(F16, (32, 64, 3)), build.leaf(F16, (32, 64, 3))
    return [q, k, v, build.flash_attn_ext(q, k, v, None, scale=0.2)]


def placed(tensors: Sequence[Tensor]) -> Bytes:
    """Put tensors one behind the other, leaves with values; return the memory of the last."""
    random, step = np.random.default_rng(1), 1 << 20
    buffer = HostBuffer(NullDevice(), step * len(tensors))
    for index, tensor in enumerate(tensors):
        tensor.buffer, tensor.offset = buffer, index * step
        if tensor.op is None:
            values = random.standard_normal(tensor.n_elements)
            dtype = np.float32 if tensor.type is F32 else np.float16
            data = values.astype(dtype).view(np.uint8)[: tensor.nbytes]
            if tensor.type is Q8_0:
                data = np.full(tensor.nbytes, 7, np.uint8)
            buffer.write(tensor.offset, data.data)
    start = step * (len(tensors) - 1)
    return np.frombuffer(buffer.bytes, np.uint8)[start : start + tensors[-1].nbytes]


def run(table: Table, threads: Sequence[int]) -> None:
    for call in table.calls():
        code = as_callable(call.code, 3)
        for ith in threads:
            code(call.arguments, ith, THREADS)


@pytest.mark.parametrize("make", [product, float_product, attention])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_first_thread_does_the_work_of_late_ones(
    library: KernelLibrary, make: Callable[[int], list[Tensor]], order: tuple[int, ...]
) -> None:
    tensors = make(200)
    out = placed(tensors)
    builder = PlanBuilder(library.target.lanes)
    node = tensors[-1]
    assert node.op is not None
    LOWERINGS[node.op.name].emit(builder, node)
    assert any(isinstance(param, Claims) for row in builder.rows for param in row.params)
    table = Table(builder, library, THREADS)
    results = []
    for _ in range(3):
        out[:] = 0xFF
        run(table, order)
        assert not table._claims.any()
        results.append(out.copy())
    assert all(np.array_equal(result, results[0]) for result in results)
    assert np.isfinite(results[0].view(np.float32)).all()
    main = table.calls()[-1]
    out[:] = 0xFF
    as_callable(main.code, 3)(main.arguments, order[0], THREADS)
    assert np.array_equal(out, results[0])  # nobody else is needed
    for ith in order[1:]:
        as_callable(main.code, 3)(main.arguments, ith, THREADS)
    assert not table._claims.any()


def test_little_work_is_shared_out_before(library: KernelLibrary) -> None:
    weights, x = build.leaf(Q8_0, (32, 48)), build.leaf(F32, (32, 3))
    node = build.mul_mat(weights, x)
    out = placed([weights, x, node])
    builder = PlanBuilder(library.target.lanes)
    LOWERINGS["MUL_MAT"].emit(builder, node)
    table = Table(builder, library, THREADS)
    out[:] = 0xFF
    run(table, [0])
    assert (out != 0xFF).any()
    assert (out.reshape(3, 48, 4)[:, 16:] == 0xFF).all()
    assert table._claims.size >= layout.CACHE_LINE * THREADS
