"""Which kernels an operation becomes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rpc_backend.graph import OPS, Tensor, build, element_type
from rpc_backend.graph.element_types import F16, F32, I8, I16, I32, Q4_0, Q8_0
from rpc_backend.graph.ops import RopeMode
from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.library import KERNELS
from rpc_backend_numba.lowering import LOWERINGS
from rpc_backend_numba.lowering.attention import alibi_slopes, rope_frequencies

BUFFER = HostBuffer(NullDevice(), 1 << 24)


def leaf(kind: str, *ne: int) -> Tensor:
    tensor = build.leaf(element_type(kind), ne)
    tensor.buffer = BUFFER
    return tensor


def lowered(node: Tensor, lanes: int = 16, *, interleaved: bool = False) -> PlanBuilder:
    """The plan of one node whose tensors all lie at offset 0 but for the result."""
    node.buffer, node.offset = BUFFER, 1 << 23
    builder = PlanBuilder(lanes, lambda tensor: interleaved)
    assert node.op is not None
    assert LOWERINGS[node.op.name].supports(node)
    LOWERINGS[node.op.name].emit(builder, node)
    return builder


def kernels(node: Tensor, lanes: int = 16) -> list[list[str]]:
    return [row.codes for row in lowered(node, lanes).rows]


def test_lowerings_are_for_operations_that_compute() -> None:
    assert set(LOWERINGS) <= {name for name, op in OPS.items() if op.moves_data}


@pytest.mark.parametrize("columns", [1, 2])
def test_few_columns_of_plain_weights_go_by_rows(columns: int) -> None:
    product = build.mul_mat(leaf("Q4_0", 64, 8), leaf("F32", 64, columns))
    assert kernels(product) == [["inputs.F32"], ["product_rows", "rows.Q4_0"]]


def test_more_columns_interleave_on_the_way() -> None:
    product = build.mul_mat(leaf("Q4_0", 64, 8), leaf("F32", 64, 3))
    assert kernels(product) == [["inputs.F32"], ["product_tiles", "interleave.Q4_0", "tile.Q4_0"]]


@pytest.mark.parametrize(
    ("rows", "columns", "rest"),
    [
        (32, 1, []),
        (35, 2, [["product_rows", "rows.Q4_0"]]),
        (35, 9, [["product_tiles", "interleave.Q4_0", "tile.Q4_0"]]),
    ],
)
def test_interleaved_weights_are_read_in_place(rows: int, columns: int, rest: list[list[str]]) -> None:
    product = build.mul_mat(leaf("Q4_0", 64, rows), leaf("F32", 64, columns))
    found = lowered(product, interleaved=True).rows
    assert [row.codes for row in found] == [["inputs.F32"], ["product_tiles", "tile.Q4_0"], *rest]
    assert found[1].operands[0].ne[0] == found[1].operands[1].ne[1] == 32
    assert [row.operands[1].ne[1] for row in found[2:]] == [3] * len(rest)


def test_a_row_of_an_interleaved_table_is_picked() -> None:
    node = build.get_rows(leaf("Q4_0", 64, 35), leaf("I32", 2))
    found = lowered(node, interleaved=True).rows
    assert [row.codes for row in found] == [["get_rows", "to_float.Q4_0", "pick.Q4_0"]]


def test_packed_floats_are_read_in_place() -> None:
    assert kernels(build.mul_mat(leaf("F16", 64, 8), leaf("F32", 64, 2))) == [["product_rows", "float_rows.F16"]]


def test_activations_are_quantised_once_for_several_products() -> None:
    x = leaf("F32", 64, 1)
    builder = PlanBuilder(16)
    for number in range(3):
        node = build.mul_mat(leaf("Q8_0", 64, 8), x)
        node.buffer, node.offset = BUFFER, (1 << 23) + 4096 * number
        LOWERINGS["MUL_MAT"].emit(builder, node)

    assert [row.kernel for row in builder.rows].count("inputs.F32") == 1


@pytest.mark.parametrize(
    ("source", "target", "kernel"),
    [
        (F32, F32, ["copy_rows.same"]),
        (F32, F16, ["copy_rows.encode", "from_float.F16"]),
        (F16, F32, ["copy_rows.decode", "to_float.F16"]),
        (F16, Q8_0, ["copy_rows.both", "to_float.F16", "from_float.Q8_0"]),
        (Q4_0, Q4_0, ["copy_rows.same"]),
        (F32, I32, ["copy.to_int"]),
    ],
)
def test_packed_copies_go_by_rows(source, target, kernel: list[str]) -> None:
    assert kernels(build.cpy(leaf(source.name, 64, 4), leaf(target.name, 64, 4))) == [kernel]


def test_transposed_copies_go_by_elements() -> None:
    assert kernels(build.cont(build.transpose(leaf("F16", 64, 4)))) == [["copy.same"]]


@pytest.mark.parametrize(("source", "target"), [(F32, I16), (Q8_0, Q4_0), (I8, F32), (I32, F16)])
def test_conversions_nobody_defines_are_refused(source, target) -> None:
    node = build.cpy(leaf(source.name, 64, 4), leaf(target.name, 64, 4))

    assert not LOWERINGS["CPY"].supports(node)


@pytest.mark.parametrize(
    "make",
    [
        lambda: build.set_rows(leaf("Q4_K", 256, 4), leaf("F32", 256, 2), leaf("I32", 2)),
        lambda: build.get_rows(leaf("I16", 8, 4), leaf("I32", 2)),
        lambda: build.mul_mat(leaf("I8", 32, 4), leaf("F32", 32, 2)),
        lambda: build.flash_attn_ext(
            leaf("F32", 32, 1, 1), leaf("I16", 32, 8, 1), leaf("F16", 32, 8, 1), None, scale=1.0
        ),
    ],
    ids=["set_rows", "get_rows", "mul_mat", "flash_attn_ext"],
)
def test_element_types_without_a_kernel_are_refused(make) -> None:
    node = make()

    assert not LOWERINGS[node.op.name].supports(node)


def test_every_kernel_that_lowerings_name_exists() -> None:
    x, scores, mask = leaf("F32", 64, 4), leaf("F32", 64, 4), leaf("F16", 64, 4)
    nodes: Sequence[Tensor] = [
        build.add(x, x), build.scale(x, 2.0), build.rms_norm(x, 1e-5), build.sum_rows(x), build.cumsum(x),
        build.argmax(x), build.clamp(x, 0.0, 1.0), build.log(x),
        build.argsort(x), build.top_k(x, 3), build.concat(x, x, 1), build.repeat(x, (64, 8, 1, 1)),
        build.soft_max(scores, mask), build.get_rows(x, leaf("I32", 2)), build.set_rows(x, x, leaf("I64", 4)),
        build.rope(leaf("F32", 64, 2, 4), leaf("I32", 4), n_dims=64, mode=RopeMode.NEOX),
        build.flash_attn_ext(leaf("F32", 64, 4, 2), leaf("F16", 64, 8, 2), leaf("Q8_0", 64, 8, 2), None, scale=1.0),
    ]  # fmt: skip
    named = {code.partition(".")[0] for node in nodes for codes in kernels(node) for code in codes}

    assert named <= set(KERNELS)
    assert {"angles", "rope", "attention", "soft_max", "to_float", "from_float", "top_k", "cumsum"} <= named


def test_positions_that_several_nodes_share_get_one_table() -> None:
    positions = leaf("I32", 4)
    builder = PlanBuilder(16)
    for heads in (2, 1):
        node = build.rope(leaf("F32", 64, heads, 4), positions, n_dims=64, mode=RopeMode.NORMAL)
        node.buffer, node.offset = BUFFER, (1 << 23) + 8192 * heads
        LOWERINGS["ROPE"].emit(builder, node)

    assert [row.kernel for row in builder.rows] == ["angles", "rope.NORMAL", "rope.NORMAL"]


def test_slopes_are_powers_of_two_for_eight_heads() -> None:
    np.testing.assert_allclose(alibi_slopes(8, 8.0), 2.0 ** -np.arange(1, 9))
    np.testing.assert_allclose(alibi_slopes(3, 8.0), [2.0**-4, 2.0**-8, 2.0**-2])
    np.testing.assert_array_equal(alibi_slopes(5, 0.0), np.ones(5))


def test_frequencies_of_rope() -> None:
    params = {"n_dims": 8, "freq_base": 10000.0, "freq_scale": 0.25, "ext_factor": 0.0, "attn_factor": 1.5}
    frequencies, mix, magnitude = rope_frequencies(params)

    np.testing.assert_allclose(frequencies, [1.0, 0.1, 0.01, 0.001])
    np.testing.assert_array_equal(mix, np.zeros(4))
    assert magnitude == 1.5


def test_yarn_keeps_fast_pairs_and_scales_slow_ones() -> None:
    params = {
        "n_dims": 64, "freq_base": 10000.0, "freq_scale": 0.25, "ext_factor": 1.0, "attn_factor": 1.0,
        "n_ctx_orig": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
    }  # fmt: skip
    _, mix, magnitude = rope_frequencies(params)

    assert mix[0] == 1
    assert mix[-1] == 0
    assert np.all(np.diff(mix) <= 0)
    assert magnitude == pytest.approx(1 + 0.1 * np.log(4))
