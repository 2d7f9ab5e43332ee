"""RMS_NORM with its neighbours: the sum before it, the product after it.

Belongs here: these three in one pass over a row. Must not be here: any of them alone (`elementwise`, `reductions`),
or when they may be joined (`lowering.fusion`).

All rows are packed F32, and every result is written, bit for bit as by the kernels of single operations.
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.kernels.access import (
    extent,
    n_rows,
    param,
    param_float,
    repeated_row_address,
    row_address,
    share,
    split_row,
)
from rpc_backend_numba.kernels.reductions import make_squares
from rpc_backend_numba.simd import helper, load, splat, store
from rpc_backend_numba.simd.layer import Layer

_F32, _F64 = types.float32, types.float64

EPS, PIECE, SUM, SUM_STRIDES = 0, 1, 2, 3
"""Parameters: what is added to the mean square; how many elements threads share rows by, a multiple of a vector or a
whole row; address and strides along axes 1 to 3 of the sum."""


def make_norm_chain(layer: Layer, name: str) -> Any:
    """Return the kernel of `NORM_MUL` or `ADD_NORM_MUL`.

    Tensors: 0 the product, 1 what is normed or the first summand, 2 the second, 3 the weights, which repeat along axes
    1 to 3, 4 the norm. A thread that shares a row works out the whole row's mean square, and writes its own pieces.
    """
    F32, lanes = layer.F32, layer.lanes
    has_sum = name == "ADD_NORM_MUL"

    @helper
    def vector_at(a, b, i):
        if has_sum:
            return load(F32, a + 4 * i) + load(F32, b + 4 * i)
        return load(F32, a + 4 * i)

    @helper
    def element_at(a, b, i):
        if has_sum:
            return load(_F32, a + 4 * i) + load(_F32, b + 4 * i)
        return load(_F32, a + 4 * i)

    squares = make_squares(layer, vector_at)

    @helper
    def norm_factor(a, b, n, eps):
        found, i = squares(a, b, n)
        total = _F64(found)
        while i < n:
            one = _F64(element_at(a, b, i))
            total += one * one
            i += 1
        return _F32(1.0 / math.sqrt(total / n + eps))

    @helper
    def finish(a, b, sums, weights, normed, out, i, end, factor):
        """Write elements [i, end) of all results."""
        while i + lanes <= end:
            x = vector_at(a, b, i)
            if has_sum:
                store(sums + 4 * i, x)
            scaled = x * splat(F32, factor)
            store(normed + 4 * i, scaled)
            store(out + 4 * i, scaled * load(F32, weights + 4 * i))
            i += lanes
        while i < end:
            one = element_at(a, b, i)
            if has_sum:
                store(sums + 4 * i, one)
            store(normed + 4 * i, one * factor)
            store(out + 4 * i, one * factor * load(_F32, weights + 4 * i))
            i += 1

    def norm_chain(args, ith, nth):
        n, size = extent(args, 0, 0), param(args, PIECE)
        pieces = (n + size - 1) // size
        first, last = share(pieces * n_rows(args, 0), ith, nth)
        while first < last:
            row, piece = first // pieces, first % pieces
            taken = min(pieces - piece, last - first)
            i1, i2, i3 = split_row(row, args, 0)
            a, b, sums = row_address(args, 1, i1, i2, i3), 0, 0
            if has_sum:
                b, sums = row_address(args, 2, i1, i2, i3), param(args, SUM)
                sums += i1 * param(args, SUM_STRIDES) + i2 * param(args, SUM_STRIDES + 1)
                sums += i3 * param(args, SUM_STRIDES + 2)
            weights, normed = repeated_row_address(args, 3, i1, i2, i3), row_address(args, 4, i1, i2, i3)
            out = row_address(args, 0, i1, i2, i3)
            factor = norm_factor(a, b, n, param_float(args, EPS))
            start, end = piece * size, min(n, (piece + taken) * size)
            finish(a, b, sums, weights, normed, out, start, end, factor)
            first += taken

    return norm_chain
