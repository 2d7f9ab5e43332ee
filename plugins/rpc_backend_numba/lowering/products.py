"""MUL_MAT.

Belongs here: which of the ways a product is computed, and the memory it needs. Must not be here: kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from rpc_backend.plugin_api import Tensor
from rpc_backend_numba.arguments import Claims, Code, Operand, Param, Parts, Private, Shared
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.formats import BLOCK, FORMATS, GROUP, INPUT_NBYTES, SPARE_NBYTES, TILE_ROWS, UNIT_COLUMNS
from rpc_backend_numba.lowering.parts import column_parts
from rpc_backend_numba.lowering.types import DECODABLE, F32, FLOATS

TILE_COLUMNS_QUANTIZED = 3
TILE_COLUMNS_FLOAT = 8
"""From so many columns on, making panels of weights that do not lie as such pays."""


def supports(node: Tensor) -> bool:
    a, b = node.sources
    return supports_product(node, a, b)


def supports_product(node: Tensor, weights: Tensor, b: Tensor) -> bool:
    return weights.type in DECODABLE and weights.has_packed_rows and b.type in FLOATS and node.nb[0] == 4


def mul_mat(builder: PlanBuilder, node: Tensor) -> None:
    """Each row of `a` times each column of `b`, `a` repeating over the matrices of `b`."""
    a, b = node.sources
    if a.type.name in FORMATS:
        _quantized(builder, node)
    elif b.ne[1] < TILE_COLUMNS_FLOAT:
        _float_rows(builder, node)
    else:
        _float_tiles(builder, node)


def _quantized(builder: PlanBuilder, node: Tensor) -> None:
    """Whole groups of interleaved rows as they lie, all other rows one by one or interleaved on the way."""
    a, b = node.sources
    n_rows, few = a.ne[1], b.ne[1] < TILE_COLUMNS_QUANTIZED
    done = n_rows - n_rows % TILE_ROWS if builder.is_interleaved(a) else 0
    if done:
        _quantized_tiles(builder, node, 0, done, interleaved=True)
    if done < n_rows and few:
        inputs, params = _quantized_inputs(builder, a, b)
        params = [*params, Code(f"rows.{a.type.name}")]
        operands = _some_rows(node, done, n_rows)
        builder.row("product_rows", node, [a, b], params, shared=[inputs], operands=operands)
    elif done < n_rows:
        _quantized_tiles(builder, node, done, n_rows, interleaved=False)


def _quantized_tiles(builder: PlanBuilder, node: Tensor, first: int, last: int, *, interleaved: bool) -> None:
    a, b = node.sources
    inputs, params = _quantized_inputs(builder, a, b)
    name = a.type.name
    panel: Param = 0 if interleaved else Code(f"interleave.{name}")
    n_blocks = a.ne[0] // a.type.block_size
    params = [*params, n_blocks, TILE_ROWS, panel, Code(f"tile.{name}"), Private(), Claims()]
    private = SPARE_NBYTES + (0 if interleaved else TILE_ROWS * n_blocks * a.type.block_nbytes)
    operands = _some_rows(node, first, last)
    builder.row("product_tiles", node, [a, b], params, shared=[inputs], private_nbytes=private, operands=operands)


def _quantized_inputs(builder: PlanBuilder, a: Tensor, b: Tensor) -> tuple[Shared, list[Param]]:
    """The activations of a product of quantised weights, and the parameters that every such product begins with."""
    n_groups = a.ne[0] // GROUP
    together = 1 if b.ne[1] < TILE_COLUMNS_QUANTIZED else UNIT_COLUMNS
    unit_nbytes, n_units = n_groups * INPUT_NBYTES * together, -(-b.ne[1] // together)
    kernel, size = quantized_inputs(a)
    inputs = inputs_of(builder, kernel, b, unit_nbytes, n_units, [together], column_parts(b, together, size))
    return inputs, [inputs, unit_nbytes, unit_nbytes * n_units, n_groups]


def quantized_inputs(weights: Tensor) -> tuple[str, int]:
    """The kernel that makes activations ready for weights, and how many of them share a scale."""
    return ("block_inputs", BLOCK) if FORMATS[weights.type.name].scaled_by_block else ("inputs", GROUP)


def _some_rows(node: Tensor, first: int, last: int) -> list[Operand | None]:
    """The operands of a product of rows [first, last) of the weights only."""
    out, weights, columns = (Operand.of(tensor) for tensor in (node, *node.sources))
    return [out.part(0, first, last), weights.part(1, first, last), columns]


def _float_rows(builder: PlanBuilder, node: Tensor) -> None:
    a, b = node.sources
    n, code = a.ne[0], Code(f"float_rows.{a.type.name}")
    one_matrix_stride = b.ne[3] == 1 or b.nb[3] == b.nb[2] * b.ne[2]
    if b.type is F32 and b.nb[0] == 4 and one_matrix_stride:
        params: list[Param] = [Operand.of(b).address, b.nb[1], b.nb[2], n, code]
        builder.row("product_rows", node, [a, b], params)
        return
    inputs = inputs_of(builder, "inputs_float_row", b, 4 * n, b.ne[1])
    builder.row("product_rows", node, [a, b], [inputs, 4 * n, 4 * n * b.ne[1], n, code], shared=[inputs])


def _float_tiles(builder: PlanBuilder, node: Tensor) -> None:
    a, b = node.sources
    n, lanes = a.ne[0], builder.lanes
    unit_nbytes, n_units = 4 * UNIT_COLUMNS * n, -(-b.ne[1] // UNIT_COLUMNS)
    inputs = inputs_of(builder, "inputs_float_tile", b, unit_nbytes, n_units)
    codes = [Code(f"panel.{a.type.name}"), Code("tile.float")]
    params: list[Param] = [inputs, unit_nbytes, unit_nbytes * n_units, n, n, lanes, *codes, Private(), Claims()]
    private = SPARE_NBYTES + 4 * lanes * n
    builder.row("product_tiles", node, [a, b], params, shared=[inputs], private_nbytes=private)


def inputs_of(
    builder: PlanBuilder,
    kernel: str,
    b: Tensor,
    stride_nbytes: int,
    count: int,
    more: Sequence[Param] = (),
    parts: Parts | None = None,
) -> Shared:
    """The activations in a layout of `product_inputs`: `count` columns or units per matrix."""
    matrix_nbytes = stride_nbytes * count
    return builder.prepare(
        (stride_nbytes, count),
        f"{kernel}.{b.type.name}",
        matrix_nbytes * b.ne[2] * b.ne[3],
        [b],
        lambda block: [block, stride_nbytes, matrix_nbytes, *more],
        parts=parts,
    )
