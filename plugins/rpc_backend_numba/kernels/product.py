"""MUL_MAT: the split of a matrix product over threads.

Belongs here: batches, broadcasting, the choice of rows and panels. Must not be here: arithmetic.

Tensors: 0 result [m, n, ne2, ne3], 1 weights, 2 activations. Parameters: see the constants.
"""

from __future__ import annotations

from typing import Any

from rpc_backend_numba.atomics import code_call
from rpc_backend_numba.formats import SPARE_NBYTES, UNIT_COLUMNS
from rpc_backend_numba.kernels.access import address, extent, param, share, stride
from rpc_backend_numba.kernels.claims import claim
from rpc_backend_numba.simd import helper
from rpc_backend_numba.simd.layer import Layer

INPUTS, INPUT_STRIDE, MATRIX_STRIDE, N_GROUPS = 0, 1, 2, 3
ROWS_CODE = 4
N_STEPS, PANEL_ROWS, PANEL_CODE, TILE_CODE, SCRATCH, SCRATCH_STRIDE, CLAIMS = 4, 5, 6, 7, 8, 9, 10

_ROWS_PER_ITEM = 8
_CHUNK_COLUMNS = 96
"""Columns whose activations stay near the core while rows of weights pass by."""
_CLAIMS_PER_CHUNK = 8
_LEAST_TO_CLAIM = 512
"""Groups of 16 rows and one column for each thread, times the threads: less is shared out before, as to ask all of them
for work takes longer than it saves."""

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

    @helper
    def panels_of(args, spare, panels, first, last, column, taken):
        """Multiply panels [first, last), counted through all matrices, by some columns."""
        panel_rows, panel_code = param(args, PANEL_ROWS), param(args, PANEL_CODE)
        row_stride, unit_stride = stride(args, 1, 1), param(args, INPUT_STRIDE)
        scratch = spare + SPARE_NBYTES
        for item in range(first, last):
            weights, inputs, out = _places(args, item // panels)
            row = item % panels * panel_rows
            count = min(panel_rows, extent(args, 1, 1) - row)
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

    def product(args, ith, nth):
        n_columns, panel_rows = extent(args, 2, 1), param(args, PANEL_ROWS)
        panels = (extent(args, 1, 1) + panel_rows - 1) // panel_rows
        all_panels = panels * extent(args, 2, 2) * extent(args, 2, 3)
        spare = param(args, SCRATCH) + ith * param(args, SCRATCH_STRIDE)
        n_chunks = max(1, n_columns // _CHUNK_COLUMNS)
        is_claimed = nth > 1 and all_panels * param(args, N_GROUPS) * n_columns >= _LEAST_TO_CLAIM * nth * nth
        for turn in range(nth if is_claimed else 1):
            owner = (ith + turn) % nth
            first, last = share(all_panels, owner, nth)
            unit_panels = max(1, (last - first) // _CLAIMS_PER_CHUNK)
            per_chunk = (last - first + unit_panels - 1) // unit_panels
            n_units, unit = per_chunk * n_chunks, -1
            while True:
                unit = claim(param(args, CLAIMS), owner, n_units, nth) if is_claimed else unit + 1
                if unit >= n_units:
                    break
                chunk, start = unit // per_chunk, first + unit % per_chunk * unit_panels
                column = chunk * _CHUNK_COLUMNS
                taken = _CHUNK_COLUMNS if chunk < n_chunks - 1 else n_columns - column
                panels_of(args, spare, panels, start, min(start + unit_panels, last), column, taken)

    return product
