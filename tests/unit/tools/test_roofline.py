from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rpc_backend.graph import Graph, Tensor, element_type
from rpc_backend.graph.build import add, flash_attn_ext, get_rows, leaf, mul_mat
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.host.placement import place_leaves
from rpc_backend.interfaces import BufferUsage, Device
from rpc_backend.registry import load_registry
from rpc_backend_numba.code import CodeLoader
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.targets import choose_target

F32, F16, Q8_0, I32 = (element_type(name) for name in ("F32", "F16", "Q8_0", "I32"))


@pytest.fixture
def limits(tool: Callable[[str], ModuleType]) -> ModuleType:
    return tool("roofline_limits")


@pytest.fixture
def ops(tool: Callable[[str], ModuleType]) -> ModuleType:
    return tool("roofline_ops")


@pytest.fixture
def device() -> Iterator[Device]:
    (found,) = load_registry().create_devices("numba", DeviceOptions(threads=1))
    yield found
    found.close()


def product_and_sum(n_columns: int) -> list[Tensor]:
    """A matrix of 64 rows times some columns, plus a row; the last tensor is the result."""
    matrix, columns, row = leaf(Q8_0, (32, 64)), leaf(F32, (32, n_columns)), leaf(F32, (64,))
    product = mul_mat(matrix, columns)
    return [matrix, columns, row, product, add(product, row)]


def placed_plan(device: Device, tensors: list[Tensor]) -> Any:
    for buffer in place_leaves(device, tensors, BufferUsage.ANY):
        buffer.fill(0, buffer.nbytes, 0)
    return device.compile(Graph.of(tensors[-1]))


def test_the_least_time_is_that_of_memory_or_of_the_peak(limits: ModuleType) -> None:
    found = limits.Limits(1, read_gbps=10.0, byte_gmacs=100.0, float_gmacs=20.0)
    assert found.seconds(5e9, 1e9, is_float=False) == pytest.approx(0.5)
    assert found.seconds(1e9, 100e9, is_float=False) == pytest.approx(1.0)
    assert found.seconds(1e9, 100e9, is_float=True) == pytest.approx(5.0)
    best = found.best(limits.Limits(1, 8.0, 120.0, 20.0))
    assert (best.threads, best.read_gbps, best.byte_gmacs, best.float_gmacs) == (1, 10.0, 120.0, 20.0)


def test_the_kernels_of_the_limits_do_all_their_work(limits: ModuleType) -> None:
    target = choose_target()
    layer, loader = Layer(target), CodeLoader(target)
    width, n_steps = 4 * layer.lanes, 3
    ring = np.random.default_rng(1).integers(0, 100, 4096, np.uint8)
    sink = np.zeros(64, np.int32)
    limits._native(loader, limits.make_byte_dots(layer), 3)(ring.ctypes.data, n_steps, sink.ctypes.data)
    values = ring[: n_steps * width].reshape(n_steps, width).astype(np.int64)
    weights = [ring[start : start + width].astype(np.int64) for start in (0, 64, 128, 192, 4, 68, 132, 196)]
    products = sum(row * weight for row in values for weight in weights)
    assert np.array_equal(sink[: layer.lanes], np.reshape(products, (layer.lanes, 4)).sum(axis=1))
    words = np.random.default_rng(2).integers(0, 2**31, 2048, np.int32)
    limits._native(loader, limits.make_read(layer), 3)(words.ctypes.data, words.nbytes, sink.ctypes.data)
    assert np.array_equal(sink[: layer.lanes], np.bitwise_xor.reduce(words.reshape(-1, layer.lanes)))


def test_work_is_what_must_be_read_and_multiplied(ops: ModuleType) -> None:
    product, total = product_and_sum(3)[-2:]
    assert ops.work_of(product) == ops.Work(64 * 34 + 4 * 3 * (32 + 64), 32 * 64 * 3, False)
    assert ops.work_of(total) == ops.Work(4 * (2 * 3 * 64 + 64))
    assert ops.work_of(mul_mat(leaf(F16, (32, 64)), leaf(F32, (32, 3)))).is_float
    rows = get_rows(leaf(F32, (64, 1000)), leaf(I32, (2,)))
    assert ops.work_of(rows) == ops.Work(2 * 2 * 64 * 4)
    q, k, v = leaf(F32, (64, 5, 9)), leaf(F16, (64, 40, 3)), leaf(F16, (64, 40, 3))
    attention = flash_attn_ext(q, k, v, None, scale=1.0)
    assert ops.work_of(attention).macs == 5 * 9 * 40 * 128


def test_plans_are_recorded_whole_and_by_row_and_compute_the_same(ops: ModuleType, device: Device) -> None:
    tensors = product_and_sum(1)
    plan = placed_plan(device, tensors)
    buffer, offset = tensors[2].location()
    buffer.write(offset, memoryview(np.arange(64, dtype=np.float32)).cast("B"))
    original = type(plan).run
    result = np.zeros(64, np.float32)
    with ops.recording() as recorder:
        for _ in range(4):
            plan.run()
            buffer, offset = tensors[-1].location()
            buffer.read_into(offset, memoryview(result).cast("B"))
            assert np.array_equal(result, np.arange(64))
            buffer.fill(offset, result.nbytes, 0)
    assert type(plan).run is original
    times = recorder.plan_of(1)
    assert (len(times.whole), len(times.rows)) == (2, 2)
    assert times.weights_nbytes == 64 * 34
    groups = ops.grouped(times)
    assert {name[0] for name in groups} == {"MUL_MAT", "ADD"}
    assert sum(group.calls for group in groups.values()) == len(times.row_s())
    assert sum(group.macs for group in groups.values()) == 32 * 64
    with pytest.raises(AssertionError, match="no plan of 2 columns ran"):
        recorder.plan_of(2)


def test_the_step_names_its_operations_and_their_share(
    tool: Callable[[str], ModuleType], limits: ModuleType, ops: ModuleType, device: Device
) -> None:
    plan = placed_plan(device, product_and_sum(1))
    n_rows = len(plan._table.rows)
    times = ops.PlanTimes(plan, rows=[[1e-3] * n_rows], whole=[2e-3])
    found = limits.Limits(1, read_gbps=64 * 34 / 1e-3 / 1e9, byte_gmacs=1e9, float_gmacs=1e9)
    data = tool("roofline")._step_data(times, found)
    assert data["rows_s"] == pytest.approx(n_rows * 1e-3)
    assert data["weights_share"] == pytest.approx(0.5)
    (product,) = (row for row in data["groups"] if row["macs"])
    assert (product["op"], product["shape"]) == ("MUL_MAT", "Q8_0 32 x 64 by 1")
    assert product["share_of_step"] == pytest.approx(1 / n_rows)
    assert product["share_of_limit"] == pytest.approx(1 + 4 * (32 + 64) / (64 * 34))
    text = list(tool("roofline")._rows(times, found))
    assert len(text) == 1 + len(data["groups"])


@pytest.mark.parametrize("threads", [1, 2])
def test_tiny_operations_cost_more_than_nothing(
    tool: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    tiny = tool("roofline_tiny")
    monkeypatch.setattr(tiny, "N_OPS", 50)
    found = tiny.measure_tiny_ops(choose_target(), threads)
    assert found.threads == threads
    assert found.kernel_us > 0
    assert found.op_us == found.kernel_us + found.overhead_us


def test_a_model_that_is_not_there_is_one_line(
    tool: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    roofline = tool("roofline")
    monkeypatch.setattr(roofline, "measure_limits", lambda target, threads: None)
    assert roofline.main(["--model", str(tmp_path / "none.gguf")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
