"""The values of attention: a block of them as float32, and their weighted sums.

Belongs here: what follows the weights of a block of positions. Must not be here: scores and the softmax (`attention`).
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.attention_scratch import BLOCK, Region
from rpc_backend_numba.kernels.access import extent, param, stride
from rpc_backend_numba.simd import helper, load_at, store, zero
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.simd.tiles import tile_load_scaled, tile_step_float, tile_store

REGIONS = 10
"""The parameter of `attention` from which on the offsets of `attention_scratch.Region` lie."""

_F32 = types.float32
_VALUES, _SCORES, _RESULT = Region.VALUES.value, Region.SCORES.value, Region.RESULT.value
_SEEN, _FACTOR = Region.SEEN.value, Region.FACTOR.value
_ROW_NBYTES = 4 * BLOCK
_HIDDEN = _F32(-math.inf)


@helper
def region(args, base, number):
    """Address of a part of a thread's working memory."""
    return base + param(args, REGIONS + number)


def make_fill_values(layer: Layer, decode: Any, fetch_row: Any) -> Any:
    """Return `fill(…, source, ahead, count)`: a block's values as float32, zeros for positions that no row sees.

    Rows at `ahead`, the keys of the next block or of the next key head, are brought closer meanwhile.
    """
    F32, lanes = layer.F32, layer.lanes

    @helper
    def fill_values(args, base, source, ahead, count):
        n, source_step = extent(args, 3, 0), stride(args, 3, 1)
        width = (n + lanes - 1) // lanes * lanes
        seen, values = region(args, base, _SEEN), region(args, base, _VALUES)
        for i in range(count):
            place = values + 4 * width * i
            if load_at(_F32, seen, i) > _HIDDEN:
                fetch_row(ahead + i * stride(args, 2, 1), extent(args, 2, 0))
                decode(args, source + i * source_step, place, n)
            else:
                for at in range(0, width, lanes):
                    store(place + 4 * at, zero(F32))

    return fill_values


def make_gather_block(layer: Layer) -> Any:
    """Return `gather(…, tile, n_rows, count)`: add the weighted values of a block to the results of a tile's rows."""
    narrow, middle, wide = (_gather_strip(layer, width) for width in (4, 8, 12))
    lanes = layer.lanes

    @helper
    def gather_block(args, base, tile, n_rows, count):
        n = extent(args, 3, 0)
        width = (n + lanes - 1) // lanes * lanes
        values, scores = region(args, base, _VALUES), region(args, base, _SCORES) + tile * _ROW_NBYTES
        result = region(args, base, _RESULT) + 4 * width * tile
        factors = region(args, base, _FACTOR) + 4 * tile
        if n_rows > 8:
            wide(values, scores, count, n, result, factors)
        elif n_rows > 4:
            middle(values, scores, count, n, result, factors)
        else:
            narrow(values, scores, count, n, result, factors)

    return gather_block


def _gather_strip(layer: Layer, width: int) -> Any:
    get, put = tile_load_scaled(layer.F32, width), tile_store(layer.F32, width)
    step, lanes = tile_step_float(layer.F32, width, _ROW_NBYTES), layer.lanes

    @helper
    def strip(values, scores, count, n, result, factors):
        row_nbytes = (n + lanes - 1) // lanes * lanes * 4
        for at in range(0, n, lanes):
            total = get(result + 4 * at, row_nbytes, factors)
            for i in range(count):
                total = step(total, values + row_nbytes * i + 4 * at, scores + 4 * i, 0)
            put(total, result + 4 * at, row_nbytes, width)

    return strip
