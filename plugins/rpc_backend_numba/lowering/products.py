"""MUL_MAT.

Belongs here: which of the two ways a product is computed, and the memory it needs. Must not be here: kernels.
"""

from __future__ import annotations

from rpc_backend.plugin_api import Tensor
from rpc_backend_numba.arguments import Code, Operand, Param, Private, Shared
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.formats import (
    FORMATS,
    GROUP,
    ROW_INPUT_NBYTES,
    UNIT_COLUMNS,
    UNIT_NBYTES,
    panel_group_nbytes,
)
from rpc_backend_numba.lowering.types import DECODABLE, F32, FLOATS

TILE_COLUMNS_QUANTIZED = {16: 2, 8: 4}
TILE_COLUMNS_FLOAT = 8
"""From so many columns on (of quantised weights: by the lanes of a vector), unpacking panels of weights pays."""
_WIDEST_TILE = 12


def supports(node: Tensor) -> bool:
    a, b = node.sources
    return a.type in DECODABLE and a.has_packed_rows and b.type in FLOATS and node.nb[0] == 4


def mul_mat(builder: PlanBuilder, node: Tensor) -> None:
    """Each row of `a` times each column of `b`, `a` repeating over the matrices of `b`."""
    a, b = node.sources
    form = FORMATS.get(a.type.name)
    n_groups = a.ne[0] // GROUP if form else a.ne[0]
    columns = b.ne[1]
    if columns < (TILE_COLUMNS_QUANTIZED[builder.lanes] if form else TILE_COLUMNS_FLOAT):
        _by_rows(builder, node, n_groups, quantized=form is not None)
    else:
        _by_tiles(builder, node, n_groups)


def _by_rows(builder: PlanBuilder, node: Tensor, n_groups: int, *, quantized: bool) -> None:
    a, b = node.sources
    kernel = f"{'rows' if quantized else 'float_rows'}.{a.type.name}"
    column_nbytes = n_groups * (ROW_INPUT_NBYTES if quantized else 4)
    one_matrix_stride = b.ne[3] == 1 or b.nb[3] == b.nb[2] * b.ne[2]
    if not quantized and b.type is F32 and b.nb[0] == 4 and one_matrix_stride:
        params: list[Param] = [Operand.of(b).address, b.nb[1], b.nb[2], n_groups, Code(kernel)]
        builder.row("product_rows", node, [a, b], params)
        return
    inputs = _inputs(builder, "inputs_row" if quantized else "inputs_float_row", b, column_nbytes, b.ne[1])
    params = [inputs, column_nbytes, column_nbytes * b.ne[1], n_groups, Code(kernel)]
    builder.row("product_rows", node, [a, b], params, shared=[inputs])


def _by_tiles(builder: PlanBuilder, node: Tensor, n_groups: int) -> None:
    a, b = node.sources
    form, lanes = FORMATS.get(a.type.name), builder.lanes
    unit_nbytes = n_groups * (UNIT_NBYTES if form else 4 * UNIT_COLUMNS)
    n_units = -(-b.ne[1] // UNIT_COLUMNS)
    inputs = _inputs(builder, "inputs_tile" if form else "inputs_float_tile", b, unit_nbytes, n_units)
    if form:
        panel_nbytes = n_groups * panel_group_nbytes(form.scale_span, form.has_minimum, lanes)
        codes = [Code(f"panel.{a.type.name}"), Code(f"tile.{form.tile_variant}")]
    else:
        panel_nbytes = n_groups * 4 * lanes
        codes = [Code(f"float_panel.{a.type.name}"), Code("tile.float")]
    spare_nbytes = 4 * lanes * max(lanes, _WIDEST_TILE)
    params: list[Param] = [inputs, unit_nbytes, unit_nbytes * n_units, n_groups, *codes, Private(), panel_nbytes]
    private = panel_nbytes + spare_nbytes
    builder.row("product_tiles", node, [a, b], params, shared=[inputs], private_nbytes=private)


def _inputs(builder: PlanBuilder, kernel: str, b: Tensor, stride_nbytes: int, count: int) -> Shared:
    """The activations in a layout of `product_inputs`: `count` columns or units per matrix."""
    matrix_nbytes = stride_nbytes * count
    return builder.prepare(
        stride_nbytes,
        f"{kernel}.{b.type.name}",
        matrix_nbytes * b.ne[2] * b.ne[3],
        [b],
        lambda block: [block, stride_nbytes, matrix_nbytes],
    )
