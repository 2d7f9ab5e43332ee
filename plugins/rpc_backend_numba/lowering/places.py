"""SET, ACC, PAD, ROLL, TRI, DIAG, DIAG_MASK_*, FILL, ARANGE, TIMESTEP_EMBEDDING, COUNT_EQUAL, OUT_PROD.

Belongs here: which kernels make them, on which part of the result. Must not be here: kernels.
"""

from __future__ import annotations

import math

import numpy as np

from rpc_backend.plugin_api import Tensor, Triangle, host_address
from rpc_backend_numba.arguments import Operand
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering.types import F32, FLOATS, I32

_FAR = 1 << 40
_BANDS = {
    Triangle.UPPER_DIAGONAL: (0, _FAR),
    Triangle.UPPER: (1, _FAR),
    Triangle.LOWER_DIAGONAL: (-_FAR, 0),
    Triangle.LOWER: (-_FAR, -1),
}
"""Columns less rows that are kept."""


def supports_f32(node: Tensor) -> bool:
    return all(tensor.type is F32 for tensor in (node, *node.sources))


def supports_packed(node: Tensor) -> bool:
    return supports_f32(node) and node.is_contiguous


def supports_fill(node: Tensor) -> bool:
    return node.type in FLOATS


def supports_count(node: Tensor) -> bool:
    return all(source.type is I32 for source in node.sources)


def overwrite(builder: PlanBuilder, node: Tensor) -> None:
    """SET and ACC: a copy, unless it lies there already, then a window of it."""
    assert node.op is not None
    a, b = node.sources
    params = node.params
    if host_address(a) != host_address(node):
        builder.row("copy.same", node, [a], [4])
    strides = (4, int(params["nb1"]), int(params["nb2"]), int(params["nb3"]))
    window = Operand(host_address(node) + int(params["offset"]), b.ne, strides, node.type.code)
    if node.op.name == "SET":
        builder.row("copy.same", node, [b], [4], operands=[window, Operand.of(b)])
    else:
        builder.row("binary.ADD", node, [b], operands=[window, window, Operand.of(b)])


def pad(builder: PlanBuilder, node: Tensor) -> None:
    a = node.sources[0]
    before = [int(node.params[f"before{axis}"]) for axis in range(4)]
    if node.params["circular"]:
        builder.row("wrap", node, [a], before)
        return
    builder.row("fill", node, [], [0.0])
    window = Operand.of(node)
    for axis in range(4):
        window = window.part(axis, before[axis], before[axis] + a.ne[axis])
    builder.row("copy.same", node, [a], [4], operands=[window, Operand.of(a)])


def roll(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("wrap", node, node.sources, [int(node.params[f"shift{axis}"]) for axis in range(4)])


def triangle(builder: PlanBuilder, node: Tensor) -> None:
    least, most = _BANDS[Triangle(int(node.params["triangle"]))]
    builder.row("band", node, node.sources, [least, most, 0.0])


def diagonal(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("band", node, node.sources, [0, 0, 0.0])


def diagonal_mask(builder: PlanBuilder, node: Tensor) -> None:
    assert node.op is not None
    value = -math.inf if node.op.name == "DIAG_MASK_INF" else 0.0
    builder.row("band", node, node.sources, [-_FAR, int(node.params["n_past"]), value])


def fill(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("fill", node, [], [float(node.params["value"])])


def arange(builder: PlanBuilder, node: Tensor) -> None:
    steps = np.arange(node.ne[0], dtype=np.float32) * np.float32(node.params["step"])
    values = np.float32(node.params["start"]) + steps
    nb = (4, values.nbytes, values.nbytes, values.nbytes)
    source = Operand(builder.constant(values), (node.ne[0], 1, 1, 1), nb, F32.code)
    builder.row("copy.same", node, [], [4], operands=[Operand.of(node), source])


def timestep_embedding(builder: PlanBuilder, node: Tensor) -> None:
    half = int(node.params["dim"]) // 2
    frequencies = np.exp(-np.log(np.float64(node.params["max_period"])) * np.arange(half) / max(half, 1))
    builder.row("timestep", node, node.sources, [builder.constant(frequencies), half])


def count_equal(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("count_equal", node, node.sources)


def out_prod(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("out_prod", node, node.sources)
