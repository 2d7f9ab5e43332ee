"""MUL_MAT: the split of a matrix product over threads.

Belongs here: batches, broadcasting, the choice of rows and panels. Must not be here: arithmetic.

Tensors: 0 result [m, n, ne2, ne3], 1 weights, 2 activations. Parameters: see the constants.
"""

from __future__ import annotations

from typing import Any

from rpc_backend_numba.atomics import code_call
from rpc_backend_numba.kernels.access import address, extent, param, share, stride
from rpc_backend_numba.simd import helper
from rpc_backend_numba.simd.layer import Layer

INPUTS, INPUT_STRIDE, MATRIX_STRIDE, N_GROUPS = 0, 1, 2, 3
ROWS_CODE = 4
PANEL_CODE, TILE_CODE, SCRATCH, SCRATCH_STRIDE, PANEL_NBYTES = 4, 5, 6, 7, 8

_ROWS_PER_ITEM = 8

_call_rows, _call_panel, _call_tile = code_call(9), code_call(6), code_call(9)


@helper
def _places(args, matrix):
    """Addresses of matrix number `matrix` of the weights (which repeat), the inputs and the result."""
    n2 = extent(args, 2, 2)
    i2, i3 = matrix % n2, matrix // n2
    repeat2, repeat3 = n2 // extent(args, 1, 2), extent(args, 2, 3) // extent(args, 1, 3)
    weights = address(args, 1) + (i2 // repeat2) * stride(args, 1, 2) + (i3 // repeat3) * stride(args, 1, 3)
    inputs = param(args, INPUTS) + matrix * param(args, MATRIX_STRIDE)
    return weights, inputs, address(args, 0) + i2 * stride(args, 0, 2) + i3 * stride(args, 0, 3)


def make_product_rows(layer: Layer) -> Any:
    """Return the kernel for few columns: threads share the weight rows."""

    def product(args, ith, nth):
        n_rows, n_columns = extent(args, 1, 1), extent(args, 2, 1)
        items = (n_rows + _ROWS_PER_ITEM - 1) // _ROWS_PER_ITEM
        first, last = share(items * extent(args, 2, 2) * extent(args, 2, 3), ith, nth)
        row_stride = stride(args, 1, 1)
        while first < last:
            matrix, item = first // items, first % items
            taken = min(items - item, last - first)
            weights, inputs, out = _places(args, matrix)
            row = item * _ROWS_PER_ITEM
            count = min(taken * _ROWS_PER_ITEM, n_rows - row)
            _call_rows(
                param(args, ROWS_CODE),
                weights + row * row_stride,
                row_stride,
                count,
                param(args, N_GROUPS),
                inputs,
                param(args, INPUT_STRIDE),
                n_columns,
                out + 4 * row,
                stride(args, 0, 1),
            )
            first += taken

    return product


def make_product_tiles(layer: Layer) -> Any:
    """Return the kernel for many columns: threads share the panels."""
    lanes = layer.lanes

    def product(args, ith, nth):
        n_rows, n_columns = extent(args, 1, 1), extent(args, 2, 1)
        panels = (n_rows + lanes - 1) // lanes
        first, last = share(panels * extent(args, 2, 2) * extent(args, 2, 3), ith, nth)
        row_stride, n_groups = stride(args, 1, 1), param(args, N_GROUPS)
        panel = param(args, SCRATCH) + ith * param(args, SCRATCH_STRIDE)
        spare = panel + param(args, PANEL_NBYTES)
        for item in range(first, last):
            weights, inputs, out = _places(args, item // panels)
            row = item % panels * lanes
            count = min(lanes, n_rows - row)
            place = weights + row * row_stride
            _call_panel(param(args, PANEL_CODE), place, row_stride, count, n_groups, panel, spare)
            _call_tile(
                param(args, TILE_CODE),
                panel,
                n_groups,
                inputs,
                param(args, INPUT_STRIDE),
                n_columns,
                count,
                out + 4 * row,
                stride(args, 0, 1),
                spare,
            )

    return product
