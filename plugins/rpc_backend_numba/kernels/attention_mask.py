"""The mask of FLASH_ATTN_EXT: which positions a row sees.

Belongs here: reading rows of the mask. Must not be here: scores and weights (`attention`).
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.attention_scratch import BLOCK
from rpc_backend_numba.element_codes import F16 as F16_CODE
from rpc_backend_numba.kernels.access import element_code, extent
from rpc_backend_numba.simd import helper, hmax, load, load_at, maximum, splat, store, store_at, zero
from rpc_backend_numba.simd.layer import Layer

_F32, _I64 = types.float32, types.int64
_HIDDEN = _F32(-math.inf)


def make_mask_vector(layer: Layer) -> Any:
    """Return `mask_vector(mask, position, n_kv, code, edge)`: a vector of a mask's row; past its end all is hidden.

    Without a mask, whose address is then 0, nothing before the end is hidden. `edge` has room for a vector.
    """
    F32, lanes, load_half, half_value = layer.F32, layer.lanes, layer.load_half, layer.half_value

    @helper
    def one(mask, position, code):
        if mask == 0:
            return _F32(0.0)
        if code == F16_CODE:
            return half_value(load_at(types.uint16, mask, position))
        return load_at(_F32, mask, position)

    @helper
    def mask_vector(mask, position, n_kv, code, edge):
        if position + lanes <= n_kv:
            if mask == 0:
                return zero(F32)
            if code == F16_CODE:
                return load_half(mask + 2 * position)
            return load(F32, mask + 4 * position)
        store(edge, splat(F32, _HIDDEN))
        for at in range(position, n_kv):
            store_at(_F32, edge, at - position, one(mask, at, code))
        return load(F32, edge)

    return mask_vector


def make_see_block(layer: Layer, mask_vector: Any) -> Any:
    """Return `see(args, seen, masks, edge, n_rows, start)`, which looks at the mask of a block of positions.

    It fills `seen` with the largest value that any of the rows of the mask at `masks` has for a position, and gives
    the number of positions up to the last vector with one that is not hidden.
    """
    F32, lanes = layer.F32, layer.lanes

    @helper
    def see_block(args, seen, masks, edge, n_rows, start):
        n_kv, code = extent(args, 2, 1), element_code(args, 4)
        any_row = splat(F32, _HIDDEN)
        for at in range(0, BLOCK, lanes):
            both = splat(F32, _HIDDEN)
            before = -1
            for row in range(n_rows):
                mask = load_at(_I64, masks, row)
                if mask != before:  # the heads of a token share a row
                    both = maximum(mask_vector(mask, start + at, n_kv, code, edge), both)
                    before = mask
            store(seen + 4 * at, both)
            any_row = maximum(both, any_row)
        if hmax(any_row) == _HIDDEN:
            return 0
        count = BLOCK
        while hmax(load(F32, seen + 4 * (count - lanes))) == _HIDDEN:
            count -= lanes
        return count

    return see_block
