"""Matrix products over panels: for many columns of activations.

Belongs here: the loop over columns and groups of one panel. Must not be here: filling panels (`product_panels`), the
register tile itself (`simd.tiles`), or the split over threads (`product`).

`tile_<variant>(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare)`: all addresses
and strides in bytes; inputs are in the tile layout; `spare` holds one tile, used where a panel has fewer rows than
lanes. For float panels `n_groups` counts elements.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.formats import UNIT_COLUMNS, UNIT_NBYTES, panel_group_nbytes
from rpc_backend_numba.simd import helper, load, store
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.simd.tiles import tile_step_float, tile_step_quantized, tile_store, tile_zero

TILE_COLUMNS = (12, 8, 4)
"""Widths of tiles; a matrix is cut into the widest that fits, its last columns into one that covers them."""

_F32 = types.float32


def make_tile(layer: Layer, variant: str) -> Any:
    """Return the kernel `tile` of a variant: `32`, `32m`, `16`, `16m` (scale span, minimum) or `float`."""
    if variant == "float":
        panel_step, input_step = 4 * layer.lanes, 4 * UNIT_COLUMNS
        makers = {width: tile_step_float(layer.F32, width) for width in TILE_COLUMNS}
    else:
        span, has_minimum = int(variant.rstrip("m")), variant.endswith("m")
        panel_step, input_step = panel_group_nbytes(span, has_minimum, layer.lanes), UNIT_NBYTES
        makers = {
            width: tile_step_quantized(layer.F32, width, span, has_minimum, layer.target.byte_dot)
            for width in TILE_COLUMNS
        }
    wide, middle, narrow = (_make_strip(layer, width, makers[width], panel_step, input_step) for width in TILE_COLUMNS)

    def tile(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare):
        done = 0
        while done < n_columns:
            source, place = inputs + done // UNIT_COLUMNS * unit_stride, out + done * out_stride
            left = n_columns - done
            if left > 8:
                wide(panel, n_groups, source, unit_stride, left, n_rows, place, out_stride, spare)
                done += 12
            elif left > 4:
                middle(panel, n_groups, source, unit_stride, left, n_rows, place, out_stride, spare)
                done += 8
            else:
                narrow(panel, n_groups, source, unit_stride, left, n_rows, place, out_stride, spare)
                done += 4

    return tile


def _make_strip(layer: Layer, width: int, step: Any, panel_step: int, input_step: int) -> Any:
    """Return the loop over all groups for one tile of `width` columns."""
    lanes = layer.lanes
    zero, put = tile_zero(layer.F32, width), tile_store(layer.F32, width)

    @helper
    def strip(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare):
        total = zero()
        for _ in range(n_groups):
            total = step(total, panel, inputs, unit_stride)
            panel += panel_step
            inputs += input_step
        if n_rows == lanes:
            put(total, out, out_stride, n_columns)
            return
        put(total, spare, 4 * lanes, width)
        for column in range(min(n_columns, width)):
            for row in range(n_rows):
                store(out + column * out_stride + 4 * row, load(_F32, spare + 4 * (column * lanes + row)))

    return strip
