"""Rows chosen by data.

Belongs here: GET_ROWS and SET_ROWS, and the check of their indices. Must not be here: copies of whole tensors.

An index outside the table is reported and its row left as it is; nothing outside is read or written.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.atomics import code_call
from rpc_backend_numba.element_codes import I64
from rpc_backend_numba.formats import TILE_ROWS
from rpc_backend_numba.kernels.access import (
    address,
    element_code,
    extent,
    n_rows,
    param,
    report_index,
    row_address,
    share,
    split_row,
    stride,
)
from rpc_backend_numba.simd import helper, load
from rpc_backend_numba.simd.layer import Layer

CODEC, PICK, N_BLOCKS, SCRATCH, SCRATCH_STRIDE = 0, 1, 2, 3, 4
"""Parameters: the row codec; for a table of interleaved rows what takes out one, and memory for it.
SET_ROWS has in place of PICK what decodes its values first, 0 if they are F32, and memory for a row of them."""

_call_codec, _call_pick = code_call(3), code_call(4)


@helper
def _index(args, i0, i1, i2):
    """Element [i2][i1][i0] of the I32 or I64 indices, tensor 2."""
    place = address(args, 2) + i0 * stride(args, 2, 0) + i1 * stride(args, 2, 1) + i2 * stride(args, 2, 2)
    if element_code(args, 2) == I64:
        return load(types.int64, place)
    return types.int64(load(types.int32, place))


def make_get_rows(layer: Layer) -> Any:
    """Return the kernel: tensor 1 the table, 2 the indices; the codec decodes a row."""

    @helper
    def place_of(args, index, i2, i3, scratch):
        """Where a row of the table lies as it is; whole groups of rows may be interleaved."""
        within = index % TILE_ROWS
        if param(args, PICK) == 0 or index >= extent(args, 1, 1) // TILE_ROWS * TILE_ROWS:
            return row_address(args, 1, index, i2, i3)
        group = row_address(args, 1, index - within, i2, i3)
        _call_pick(param(args, PICK), group, within, param(args, N_BLOCKS), scratch)
        return scratch

    def get_rows(args, ith, nth):
        first, last = share(n_rows(args, 0), ith, nth)
        limit = extent(args, 1, 1)
        scratch = param(args, SCRATCH) + ith * param(args, SCRATCH_STRIDE)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            index = _index(args, i1, i2, i3)
            if 0 <= index < limit:
                source = place_of(args, index, i2, i3, scratch)
                _call_codec(param(args, CODEC), source, row_address(args, 0, i1, i2, i3), extent(args, 0, 0))
            else:
                report_index(args, index, limit)

    return get_rows


def make_set_rows(layer: Layer) -> Any:
    """Return the kernel: tensor 1 the values, 2 the indices, which repeat along axes 2 and 3; the codec encodes.

    Threads share the rows of the target's matrices, not the values: of an index given twice the last row stays.
    """

    @helper
    def floats_of(args, source, scratch):
        if param(args, PICK) == 0:
            return source
        _call_codec(param(args, PICK), source, scratch, extent(args, 1, 0))
        return scratch

    def set_rows(args, ith, nth):
        limit = extent(args, 0, 1)
        first, last = share(limit, ith, nth)
        scratch = param(args, SCRATCH) + ith * param(args, SCRATCH_STRIDE)
        for row in range(n_rows(args, 1)):
            i1, i2, i3 = split_row(row, args, 1)
            index = _index(args, i1, i2 % extent(args, 2, 1), i3 % extent(args, 2, 2))
            if first <= index < last:
                source = floats_of(args, row_address(args, 1, i1, i2, i3), scratch)
                _call_codec(param(args, CODEC), source, row_address(args, 0, index, i2, i3), extent(args, 1, 0))
            elif ith == 0 and not 0 <= index < limit:
                report_index(args, index, limit)

    return set_rows
