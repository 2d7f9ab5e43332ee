"""MUL_MAT: the split of a matrix product over threads.

Belongs here: batches, broadcasting, the choice of rows and panels. Must not be here: arithmetic.

Tensors: 0 result [m, n, ne2, ne3], 1 weights, 2 activations. Parameters: see the constants.
"""

from __future__ import annotations

from typing import Any

from rpc_backend_numba.atomics import code_call
from rpc_backend_numba.formats import SPARE_NBYTES, UNIT_COLUMNS
from rpc_backend_numba.kernels.access import address, extent, param, share, stride
from rpc_backend_numba.simd import helper
from rpc_backend_numba.simd.layer import Layer

INPUTS, INPUT_STRIDE, MATRIX_STRIDE, N_GROUPS = 0, 1, 2, 3
ROWS_CODE = 4
N_STEPS, PANEL_ROWS, PANEL_CODE, TILE_CODE, SCRATCH, SCRATCH_STRIDE = 4, 5, 6, 7, 8, 9

_ROWS_PER_ITEM = 8
_CHUNK_COLUMNS = 96
"""Columns whose activations stay near the core while rows of weights pass by."""

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
    """Return the kernel over panels, which threads share.

    A panel of `PANEL_ROWS` rows is made by `PANEL_CODE`, of `N_STEPS` blocks or elements; without such code the
    weights lie as panels already.
    """

    def product(args, ith, nth):
        n_rows, n_columns = extent(args, 1, 1), extent(args, 2, 1)
        panel_rows, panel_code = param(args, PANEL_ROWS), param(args, PANEL_CODE)
        panels = (n_rows + panel_rows - 1) // panel_rows
        first, last = share(panels * extent(args, 2, 2) * extent(args, 2, 3), ith, nth)
        row_stride, unit_stride = stride(args, 1, 1), param(args, INPUT_STRIDE)
        spare = param(args, SCRATCH) + ith * param(args, SCRATCH_STRIDE)
        scratch = spare + SPARE_NBYTES
        n_chunks = max(1, n_columns // _CHUNK_COLUMNS)
        for chunk in range(n_chunks):
            column = chunk * _CHUNK_COLUMNS
            taken = _CHUNK_COLUMNS if chunk < n_chunks - 1 else n_columns - column
            for item in range(first, last):
                weights, inputs, out = _places(args, item // panels)
                row = item % panels * panel_rows
                count = min(panel_rows, n_rows - row)
                panel = weights + row * row_stride
                if panel_code != 0:
                    _call_panel(panel_code, panel, row_stride, count, param(args, N_STEPS), scratch, spare)
                    panel = scratch
                _call_tile(
                    param(args, TILE_CODE),
                    panel,
                    param(args, N_GROUPS),
                    inputs + column // UNIT_COLUMNS * unit_stride,
                    unit_stride,
                    taken,
                    count,
                    out + 4 * row + column * stride(args, 0, 1),
                    stride(args, 0, 1),
                    spare,
                )

    return product
