"""Exponential and logarithm, worked out in float64 and rounded once to float32.

Belongs here: functions whose results must not depend on the backend, as those that sampling compares. Must not be
here: faster ones that may be a unit in the last place off (`functions`).

Source: exp: range reduction by powers of two with ln 2 in two parts, Taylor polynomial on |r| <= ln(2) / 2; log: the
series of the inverse hyperbolic tangent on [1 / √2, √2]. Both are below 1e-15 in relative error before rounding.
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.simd.arithmetic import bitcast, convert, fma, maximum, minimum, round_even, select, splat, zero
from rpc_backend_numba.simd.inline import helper
from rpc_backend_numba.simd.vectors import vector

_LOG2_E = math.log2(math.e)
_LN2_HIGH = float.fromhex("0x1.62e42feep-1")  # 32 bits: its product with a small whole number is exact
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_MANTISSA = (1 << 52) - 1
_BIAS = 1023


def make_exp(lanes: int) -> Any:
    """Return `exp(v)`: e to the power of each float32 lane, to the nearest float32."""
    F32, F64, I64 = vector(types.float32, lanes), vector(types.float64, lanes), vector(types.int64, lanes)
    factors = tuple(1.0 / math.factorial(power) for power in range(13, -1, -1))
    (c13, c12, c11, c10, c9, c8, c7, c6, c5, c4, c3, c2, c1, c0) = factors

    @helper
    def exp(x):
        clamped = minimum(maximum(x, splat(F32, -160.0)), splat(F32, 100.0))
        n = round_even(clamped * splat(F32, _LOG2_E))
        wide = convert(types.float64, n)
        r = convert(types.float64, clamped) - wide * splat(F64, _LN2_HIGH)
        r = r - wide * splat(F64, _LN2_LOW)
        p = fma(splat(F64, c13), r, splat(F64, c12))
        p = fma(p, r, splat(F64, c11))
        p = fma(p, r, splat(F64, c10))
        p = fma(p, r, splat(F64, c9))
        p = fma(p, r, splat(F64, c8))
        p = fma(p, r, splat(F64, c7))
        p = fma(p, r, splat(F64, c6))
        p = fma(p, r, splat(F64, c5))
        p = fma(p, r, splat(F64, c4))
        p = fma(p, r, splat(F64, c3))
        p = fma(p, r, splat(F64, c2))
        p = fma(p, r, splat(F64, c1))
        p = fma(p, r, splat(F64, c0))
        exponent = convert(types.int64, convert(types.int32, n)) + splat(I64, _BIAS)
        power = bitcast(F64, exponent << splat(I64, 52))
        return select(x == x, convert(types.float32, p * power), x)

    return exp


def make_log(lanes: int) -> Any:
    """Return `log(v)`: the natural logarithm of each float32 lane, to the nearest float32.

    It is -inf of 0, and NaN of what is below.
    """
    F32, F64, I64 = vector(types.float32, lanes), vector(types.float64, lanes), vector(types.int64, lanes)
    (c21, c19, c17, c15, c13, c11, c9, c7, c5, c3) = tuple(1.0 / power for power in range(21, 1, -2))

    @helper
    def log(x):
        bits = bitcast(I64, convert(types.float64, x))  # even the smallest float32 is a normal float64
        exponent = convert(types.int32, (bits >> splat(I64, 52)) - splat(I64, _BIAS))
        m = bitcast(F64, (bits & splat(I64, _MANTISSA)) | splat(I64, _BIAS << 52))
        is_high = m > splat(F64, math.sqrt(2.0))
        m = select(is_high, m * splat(F64, 0.5), m)
        n = convert(types.float64, exponent) + select(is_high, splat(F64, 1.0), zero(F64))
        s = (m - splat(F64, 1.0)) / (m + splat(F64, 1.0))
        z = s * s
        p = fma(splat(F64, c21), z, splat(F64, c19))
        p = fma(p, z, splat(F64, c17))
        p = fma(p, z, splat(F64, c15))
        p = fma(p, z, splat(F64, c13))
        p = fma(p, z, splat(F64, c11))
        p = fma(p, z, splat(F64, c9))
        p = fma(p, z, splat(F64, c7))
        p = fma(p, z, splat(F64, c5))
        p = fma(p, z, splat(F64, c3))
        near = fma(p * z, s, s)
        low = fma(n, splat(F64, _LN2_LOW), near + near)
        found = convert(types.float32, fma(n, splat(F64, _LN2_HIGH), low))
        found = select(x == zero(F32), splat(F32, -math.inf), found)
        found = select(x == splat(F32, math.inf), x, found)
        return select(x >= zero(F32), found, splat(F32, math.nan))

    return log
