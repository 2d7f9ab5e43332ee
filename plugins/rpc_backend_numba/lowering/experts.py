"""MUL_MAT_ID and ADD_ID.

Belongs here: which of the ways a product with chosen matrices is computed, and its memory. Must not be here: kernels.
"""

from __future__ import annotations

from rpc_backend.plugin_api import Tensor
from rpc_backend_numba.arguments import Code, Operand, Param, Private, Shared
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.formats import (
    FORMATS,
    GROUP,
    INPUT_NBYTES,
    RESULT_COLUMNS,
    SPARE_NBYTES,
    TILE_ROWS,
    UNIT_COLUMNS,
)
from rpc_backend_numba.lowering.products import TILE_COLUMNS_QUANTIZED, inputs_of, quantized_inputs, supports_product

ROW_PAIRS_FLOAT = 4
"""Up to so many pairs per float matrix, panels of its weights do not pay."""


def supports(node: Tensor) -> bool:
    experts, b, _ = node.sources
    return supports_product(node, experts, b)


def add_id(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("add_id", node, node.sources)


def mul_mat_id(builder: PlanBuilder, node: Tensor) -> None:
    """Each row of `b` times the matrices that its ids name."""
    experts, _, ids = node.sources
    n_pairs, n_matrices, n_rows = ids.ne[0] * ids.ne[1], experts.ne[2], experts.ne[1]
    if experts.type.name not in FORMATS:
        if n_pairs < ROW_PAIRS_FLOAT * n_matrices:
            _rows(builder, node, 0)
        else:
            _Tiles(builder, node).add(0, n_rows)
        return
    done = n_rows - n_rows % TILE_ROWS if builder.is_interleaved(experts) else 0
    tiles = _Tiles(builder, node)
    if done:
        tiles.add(0, done, interleaved=True)
    if done < n_rows and ids.ne[1] < TILE_COLUMNS_QUANTIZED:
        _rows(builder, node, done)
    elif done < n_rows:
        tiles.add(done, n_rows)


def _columns(builder: PlanBuilder, experts: Tensor, b: Tensor) -> tuple[Shared, int, int]:
    """The activations, each column by itself; bytes of a column, and its cells: groups, or float elements."""
    if experts.type.name in FORMATS:
        n_cells = experts.ne[0] // GROUP
        kernel, _ = quantized_inputs(experts)
        return inputs_of(builder, kernel, b, n_cells * INPUT_NBYTES, b.ne[1], [1]), n_cells * INPUT_NBYTES, n_cells
    n_cells = experts.ne[0]
    return inputs_of(builder, "inputs_float_row", b, 4 * n_cells, b.ne[1]), 4 * n_cells, n_cells


def _operands(node: Tensor, first: int, last: int) -> list[Operand | None]:
    """The operands of a product of rows [first, last) of the weights only."""
    out, weights, b, ids = (Operand.of(tensor) for tensor in (node, *node.sources))
    return [out.part(0, first, last), weights.part(1, first, last), b, ids]


def _rows(builder: PlanBuilder, node: Tensor, first: int) -> None:
    """Rows of weights from `first` on, pair by pair."""
    experts, b, ids = node.sources
    inputs, nbytes, n_cells = _columns(builder, experts, b)
    kind = "rows" if experts.type.name in FORMATS else "float_rows"
    params: list[Param] = [inputs, nbytes, nbytes * b.ne[1], n_cells, Code(f"{kind}.{experts.type.name}")]
    operands = _operands(node, first, experts.ne[1])
    builder.row("expert_rows", node, [experts, b, ids], params, shared=[inputs], operands=operands)


class _Tiles:
    """The products of one node over panels of weights, which share what is made of its activations and ids."""

    def __init__(self, builder: PlanBuilder, node: Tensor) -> None:
        self._builder, self._node = builder, node
        experts, b, ids = node.sources
        self._kind, self._quantized = experts.type.name, experts.type.name in FORMATS
        self._least = TILE_COLUMNS_QUANTIZED if self._quantized else 1
        n_matrices, n_pairs = experts.ne[2], ids.ne[0] * ids.ne[1]
        self._inputs, self._nbytes, self._n_cells = _columns(builder, experts, b)
        matrix_nbytes = self._nbytes * b.ne[1]
        self._groups = builder.prepare(
            (n_matrices, self._least),
            "expert_groups",
            8 * (2 * n_matrices + 1 + n_pairs),
            [ids],
            lambda block: [block, n_matrices, self._least],
        )
        n_columns = n_pairs + (UNIT_COLUMNS - 1) * min(n_matrices, n_pairs)
        layout: list[Param] = [self._inputs, self._nbytes, matrix_nbytes, self._n_cells, ids.ne[0], b.ne[1]]
        self._units = builder.prepare(
            (self._nbytes, ids.ne[0]),
            f"expert_units.{'quantized' if self._quantized else 'float'}",
            self._nbytes * n_columns,
            [],
            lambda block: [block, *layout, self._groups, n_matrices, self._least],
            shared=[self._inputs, self._groups],
        )
        self._first_params: list[Param] = [
            self._groups, self._units, self._least, self._inputs, self._nbytes, matrix_nbytes,
            UNIT_COLUMNS * self._nbytes, self._n_cells,
        ]  # fmt: skip

    def add(self, first: int, last: int, *, interleaved: bool = False) -> None:
        """Add the product of rows [first, last) of the weights, which lie interleaved or become so on the way."""
        builder, node = self._builder, self._node
        experts = node.sources[0]
        panel_rows, steps, panel_nbytes = TILE_ROWS, experts.ne[0] // experts.type.block_size, 0
        panel, tile = Code(f"interleave.{self._kind}"), Code(f"tile.{self._kind}")
        if not self._quantized:
            panel_rows, panel, tile = builder.lanes, Code(f"panel.{self._kind}"), Code("tile.float")
            panel_nbytes = 4 * panel_rows * steps
        elif not interleaved:
            panel_nbytes = TILE_ROWS * steps * experts.type.block_nbytes
        params: list[Param] = [
            *self._first_params, steps, panel_rows, 0 if interleaved else panel, tile, Private(),
        ]  # fmt: skip
        builder.row(
            "expert_tiles",
            node,
            node.sources,
            params,
            shared=[self._inputs, self._groups, self._units],
            private_nbytes=SPARE_NBYTES + 4 * TILE_ROWS * RESULT_COLUMNS + panel_nbytes,
            operands=_operands(node, first, last),
        )
