"""ROPE: rotary positions.

Belongs here: the angles of every token, once for all tensors that use them, and the rotation. Must not be here:
the frequencies, which a plan works out (`lowering`).

Source: ggml's CPU backend; YaRN is https://arxiv.org/abs/2309.00071.
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.element_codes import F32 as F32_CODE
from rpc_backend_numba.kernels.access import (
    address,
    element_code,
    extent,
    n_rows,
    param,
    param_float,
    row_address,
    share,
    split_row,
    stride,
)
from rpc_backend_numba.kernels.elements import make_any_element
from rpc_backend_numba.simd import even_lanes, fma, helper, interleave, load, odd_lanes, store, vector
from rpc_backend_numba.simd.layer import Layer

_F32, _F64, _I32, _I64 = types.float32, types.float64, types.int32, types.int64

ANGLES, N_PAIRS, FREQUENCIES, MIX, FREQ_SCALE, MAGNITUDE, N_TOKENS, PLACES = range(8)
N_OFFSET = 2
"""Parameters. ANGLES: address of the table, of each token the cosines of all pairs, then the sines, float32.
FREQUENCIES and MIX: addresses of a float64 per pair, the angle per position and the share that is not scaled.
PLACES: address of an int64 per pair, the place of the first token's position among the positions. The rotation has
only the first two, and N_OFFSET, the elements before the first pair."""


def make_angles(layer: Layer) -> Any:
    """Return the kernel that fills the table: tensor 1 the I32 positions, 2 the F32 factors or nothing."""

    def angles(args, ith, nth):
        n_pairs, frequencies, mix = param(args, N_PAIRS), param(args, FREQUENCIES), param(args, MIX)
        magnitude, factors = param_float(args, MAGNITUDE), address(args, 2)
        first, last = share(param(args, N_TOKENS), ith, nth)
        for token in range(first, last):
            table = param(args, ANGLES) + 8 * n_pairs * token
            for pair in range(n_pairs):
                place = load(_I64, param(args, PLACES) + 8 * pair) + token
                position = _F64(load(_I32, address(args, 1) + place * stride(args, 1, 0)))
                full = position * load(_F64, frequencies + 8 * pair)
                if factors != 0:
                    full /= _F64(load(_F32, factors + pair * stride(args, 2, 0)))
                share_full = load(_F64, mix + 8 * pair)
                theta = full * (param_float(args, FREQ_SCALE) * (1.0 - share_full) + share_full)
                store(table + 4 * pair, _F32(math.cos(theta) * magnitude))
                store(table + 4 * (n_pairs + pair), _F32(math.sin(theta) * magnitude))

    return angles


def make_rope(layer: Layer, mode: str) -> Any:
    """Return the kernel that rotates tensor 1: `NORMAL` pairs neighbours, `NEOX` the two halves."""
    F32, lanes, wide = layer.F32, layer.lanes, vector(_F32, 2 * layer.lanes)
    load_any, store_any = make_any_element(layer)
    neighbours = mode == "NORMAL"

    @helper
    def packed_pairs(source, out, table, n_pairs):
        """Rotate as many pairs as fill vectors and return their count."""
        i = 0
        while i + lanes <= n_pairs:
            cos, sin = load(F32, table + 4 * i), load(F32, table + 4 * (n_pairs + i))
            if neighbours:
                both = load(wide, source + 8 * i)
                a, b = even_lanes(both), odd_lanes(both)
            else:
                a, b = load(F32, source + 4 * i), load(F32, source + 4 * (n_pairs + i))
            first, second = fma(a, cos, -(b * sin)), fma(a, sin, b * cos)
            if neighbours:
                store(out + 8 * i, interleave(first, second))
            else:
                store(out + 4 * i, first)
                store(out + 4 * (n_pairs + i), second)
            i += lanes
        return i

    def rope(args, ith, nth):
        n, n_pairs, offset = extent(args, 0, 0), param(args, N_PAIRS), param(args, N_OFFSET)
        step, out_step = stride(args, 1, 0), stride(args, 0, 0)
        code, out_code = element_code(args, 1), element_code(args, 0)
        fast = code == F32_CODE and out_code == F32_CODE and step == 4 and out_step == 4
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            source, out = row_address(args, 1, i1, i2, i3), row_address(args, 0, i1, i2, i3)
            table = param(args, ANGLES) + 8 * n_pairs * i2
            start = packed_pairs(source + 4 * offset, out + 4 * offset, table, n_pairs) if fast else 0
            for pair in range(start, n_pairs):
                cos, sin = load(_F32, table + 4 * pair), load(_F32, table + 4 * (n_pairs + pair))
                i, j = (2 * pair, 2 * pair + 1) if neighbours else (pair, n_pairs + pair)
                i, j = offset + i, offset + j
                a, b = load_any(code, source + i * step), load_any(code, source + j * step)
                store_any(out_code, out + i * out_step, a * cos - b * sin)
                store_any(out_code, out + j * out_step, a * sin + b * cos)
            for i in range(offset):
                store_any(out_code, out + i * out_step, load_any(code, source + i * step))
            for i in range(offset + 2 * n_pairs, n):
                store_any(out_code, out + i * out_step, load_any(code, source + i * step))

    return rope
