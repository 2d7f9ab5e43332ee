"""Operations along a row: its sum, its norm, its softmax.

Belongs here: SUM_ROWS, MEAN, RMS_NORM, SOFT_MAX. Must not be here: order within rows (`sorting`), other norms
(`norms`).
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
    repeated_row_address,
    row_address,
    share,
    split_row,
    stride,
)
from rpc_backend_numba.kernels.elements import make_any_element
from rpc_backend_numba.simd import extract, fma, helper, hmax, hsum, load, maximum, splat, store, zero
from rpc_backend_numba.simd.layer import Layer

_F32 = types.float32


def make_sum_rows(layer: Layer) -> Any:
    """Return the kernel of SUM_ROWS: F32, any strides; parameter 0 is what the sum is divided by."""
    F32, lanes = layer.F32, layer.lanes

    def sum_rows(args, ith, nth):
        n, step = extent(args, 1, 0), stride(args, 1, 0)
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            source = row_address(args, 1, i1, i2, i3)
            total, i = zero(F32), 0
            while step == 4 and i + lanes <= n:
                total = total + load(F32, source + 4 * i)
                i += lanes
            rest = 0.0
            while i < n:
                rest += load(_F32, source + i * step)
                i += 1
            store(row_address(args, 0, i1, i2, i3), _F32((hsum(total) + rest) / param_float(args, 0)))

    return sum_rows


def make_squares(layer: Layer, vector_at: Any) -> Any:
    """Return `squares(a, b, n)`: the float32 sum of squares of n elements, and how many it covers; the rest are few.

    `vector_at(a, b, i)` gives the elements from i on.
    """
    F32, lanes = layer.F32, layer.lanes

    @helper
    def squares(a, b, n):
        even, odd, i = zero(F32), zero(F32), 0
        while i + 2 * lanes <= n:
            x, y = vector_at(a, b, i), vector_at(a, b, i + lanes)
            even, odd = fma(x, x, even), fma(y, y, odd)
            i += 2 * lanes
        return hsum(even + odd), i

    return squares


def make_rms_norm(layer: Layer) -> Any:
    """Return the kernel of RMS_NORM: parameter 0 is what is added to the mean square."""
    F32, lanes = layer.F32, layer.lanes
    load_any, store_any = make_any_element(layer)

    @helper
    def vector_at(source, _, i):
        return load(F32, source + 4 * i)

    squares = make_squares(layer, vector_at)

    def rms_norm(args, ith, nth):
        n, step, out_step = extent(args, 1, 0), stride(args, 1, 0), stride(args, 0, 0)
        code, out_code = element_code(args, 1), element_code(args, 0)
        fast = code == F32_CODE and step == 4 and out_step == 4
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            source, out = row_address(args, 1, i1, i2, i3), row_address(args, 0, i1, i2, i3)
            total, start = squares(source, 0, n) if fast else (_F32(0.0), 0)
            rest = types.float64(total)
            for i in range(start, n):
                x = load_any(code, source + i * step)
                rest += types.float64(x) * types.float64(x)
            factor = _F32(1.0 / math.sqrt(rest / n + param_float(args, 0)))
            i = 0
            while fast and i + lanes <= n:
                store(out + 4 * i, load(F32, source + 4 * i) * splat(F32, factor))
                i += lanes
            while i < n:
                store_any(out_code, out + i * out_step, load_any(code, source + i * step) * factor)
                i += 1

    return rms_norm


SCALE, SLOPES = 0, 1
"""Parameters of SOFT_MAX: the factor, the address of the float32 mask factor of each head."""


def make_soft_max(layer: Layer, mask_type: str) -> Any:
    """Return the kernel of SOFT_MAX for a mask of `F16`, `F32` or `none`; packed F32 rows. Tensor 3 is a sink per head.

    Scores are first written over the result, then turned into weights there.
    """
    F32, lanes, exp, load_half = layer.F32, layer.lanes, layer.exp, layer.load_half
    has_mask, half_mask = mask_type != "none", mask_type == "F16"
    load_any, _ = make_any_element(layer)

    @helper
    def scores(source, mask, out, n, factor, slope, mask_code):
        """Write x * factor + mask * slope and return the largest."""
        top, i = splat(F32, -math.inf), 0
        while i + lanes <= n:
            x = load(F32, source + 4 * i) * splat(F32, factor)
            if has_mask:
                bias = load_half(mask + 2 * i) if half_mask else load(F32, mask + 4 * i)
                x = fma(bias, splat(F32, slope), x)
            store(out + 4 * i, x)
            top = maximum(x, top)
            i += lanes
        largest = hmax(top)
        while i < n:
            one = load(_F32, source + 4 * i) * factor
            if has_mask:
                one += load_any(mask_code, mask + (2 if half_mask else 4) * i) * slope
            store(out + 4 * i, one)
            largest = max(largest, one)
            i += 1
        return largest

    @helper
    def weights(out, n, largest):
        """Turn scores into e^(score - largest) and return their sum."""
        total, i = zero(F32), 0
        while i + lanes <= n:
            p = exp(load(F32, out + 4 * i) - splat(F32, largest))
            store(out + 4 * i, p)
            total = total + p
            i += lanes
        rest = hsum(total)
        while i < n:
            p_one = extract(exp(splat(F32, load(_F32, out + 4 * i) - largest)), 0)
            store(out + 4 * i, p_one)
            rest += p_one
            i += 1
        return rest

    def soft_max(args, ith, nth):
        n, factor = extent(args, 0, 0), _F32(param_float(args, SCALE))
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            source, out = row_address(args, 1, i1, i2, i3), row_address(args, 0, i1, i2, i3)
            mask, slope, code = address(args, 2), _F32(1.0), element_code(args, 2)
            if has_mask:
                mask = repeated_row_address(args, 2, i1, i2, i3)
                slope = load(_F32, param(args, SLOPES) + 4 * i2)
            largest, sink = scores(source, mask, out, n, factor, slope, code), address(args, 3)
            if sink == 0:
                total = weights(out, n, largest)
            else:
                ending = load(_F32, sink + i2 * stride(args, 3, 0))
                largest = max(largest, ending)
                total = weights(out, n, largest) + extract(exp(splat(F32, ending - largest)), 0)
            i = 0
            while i + lanes <= n:
                store(out + 4 * i, load(F32, out + 4 * i) / splat(F32, total))
                i += lanes
            while i < n:
                store(out + 4 * i, load(_F32, out + 4 * i) / total)
                i += 1

    return soft_max
