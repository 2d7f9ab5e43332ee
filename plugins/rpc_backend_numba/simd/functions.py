"""Transcendental functions on vectors.

Belongs here: functions that kernels need by the vector. Must not be here: activation functions (`kernels`).

Source: range reduction by powers of two with the ln 2 of Cody and Waite, and the Taylor polynomial of e^r on
|r| <= ln(2) / 2; its error is below 2 units in the last place.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.simd.arithmetic import bitcast, convert, fma, maximum, minimum, round_even, select, splat, vabs
from rpc_backend_numba.simd.inline import helper
from rpc_backend_numba.simd.vectors import vector

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440e-4


def make_exp(lanes: int) -> Any:
    """Return `exp(v)`: e to the power of each lane; overflows to infinity and underflows through subnormals."""
    F32, I32 = vector(types.float32, lanes), vector(types.int32, lanes)

    @helper
    def exp(x):
        clamped = minimum(maximum(x, splat(F32, -105.0)), splat(F32, 89.0))
        n = round_even(clamped * splat(F32, _LOG2_E))
        r = fma(n, splat(F32, -_LN2_HIGH), clamped)
        r = fma(n, splat(F32, -_LN2_LOW), r)
        p = fma(r, splat(F32, 1.0 / 720.0), splat(F32, 1.0 / 120.0))
        p = fma(p, r, splat(F32, 1.0 / 24.0))
        p = fma(p, r, splat(F32, 1.0 / 6.0))
        p = fma(p, r, splat(F32, 0.5))
        p = fma(p, r, splat(F32, 1.0))
        p = fma(p, r, splat(F32, 1.0))
        power = convert(types.int32, n)
        half_power = power >> splat(I32, 1)
        first = bitcast(F32, (half_power + splat(I32, 127)) << splat(I32, 23))
        second = bitcast(F32, (power - half_power + splat(I32, 127)) << splat(I32, 23))
        return select(x == x, p * first * second, x)

    return exp


def make_tanh(exp: Any, lanes: int) -> Any:
    """Return `tanh(v)`; near 0 by its series, where 1 - 2 / (e^2x + 1) would lose digits."""
    F32 = vector(types.float32, lanes)

    @helper
    def tanh(x):
        one = splat(F32, 1.0)
        far = one - splat(F32, 2.0) / (exp(x + x) + one)
        square = x * x
        near = fma(square, splat(F32, -17.0 / 315.0), splat(F32, 2.0 / 15.0))
        near = fma(near, square, splat(F32, -1.0 / 3.0))
        near = fma(near * square, x, x)
        return select(vabs(x) < splat(F32, 0.15), near, far)

    return tanh
