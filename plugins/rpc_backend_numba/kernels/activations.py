"""Activation functions on vectors.

Belongs here: one vector function per member of `Unary` and `Glu`. Must not be here: loops over memory.

Source: the formulas of ggml's CPU backend; the error function is Abramowitz and Stegun 7.1.26.
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.simd import convert, fma, helper, maximum, minimum, select, splat, vabs, zero
from rpc_backend_numba.simd.layer import Layer

_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_SQRT_HALF = math.sqrt(0.5)
_WHOLE = 2.0**23
"""From here on a float32 is whole."""


def make_activation(layer: Layer, name: str) -> Any:
    """Return `f(v)` of a member of `Unary`, or the activation of a member of `Glu`."""
    return _MAKERS[_GLU.get(name, name)](layer)


_GLU = {"REGLU": "RELU", "GEGLU": "GELU", "SWIGLU": "SILU", "GEGLU_ERF": "GELU_ERF", "GEGLU_QUICK": "GELU_QUICK"}


def _simple(name: str) -> Any:
    def maker(layer: Layer) -> Any:
        F32 = layer.F32

        @helper
        def absolute(x):
            return vabs(x)

        @helper
        def sign(x):
            positive = select(x > zero(F32), splat(F32, 1.0), zero(F32))
            return select(x < zero(F32), splat(F32, -1.0), positive)

        @helper
        def negate(x):
            return splat(F32, -0.0) - x

        @helper
        def step(x):
            return select(x > zero(F32), splat(F32, 1.0), zero(F32))

        @helper
        def relu(x):
            return select(x > zero(F32), x, zero(F32))

        @helper
        def hard_sigmoid(x):
            scaled = (x + splat(F32, 3.0)) / splat(F32, 6.0)
            return minimum(maximum(scaled, zero(F32)), splat(F32, 1.0))

        @helper
        def hard_swish(x):
            return x * hard_sigmoid(x)

        functions = {
            "ABS": absolute, "SGN": sign, "NEG": negate, "STEP": step, "RELU": relu,
            "HARDSIGMOID": hard_sigmoid, "HARDSWISH": hard_swish,
        }  # fmt: skip
        return functions[name]

    return maker


def _exp(layer: Layer) -> Any:
    return layer.precise_exp


def _tanh(layer: Layer) -> Any:
    return layer.tanh


def _sigmoid(layer: Layer) -> Any:
    F32, exp = layer.F32, layer.exp

    @helper
    def sigmoid(x):
        return splat(F32, 1.0) / (splat(F32, 1.0) + exp(zero(F32) - x))

    return sigmoid


def _silu(layer: Layer) -> Any:
    F32, exp = layer.F32, layer.exp

    @helper
    def silu(x):
        return x / (splat(F32, 1.0) + exp(zero(F32) - x))

    return silu


def _gelu(layer: Layer) -> Any:
    F32, tanh = layer.F32, layer.tanh

    @helper
    def gelu(x):
        inner = splat(F32, _SQRT_2_OVER_PI) * x * fma(splat(F32, 0.044715) * x, x, splat(F32, 1.0))
        return splat(F32, 0.5) * x * (splat(F32, 1.0) + tanh(inner))

    return gelu


def _gelu_quick(layer: Layer) -> Any:
    F32, exp = layer.F32, layer.exp

    @helper
    def gelu_quick(x):
        return x / (splat(F32, 1.0) + exp(splat(F32, -1.702) * x))

    return gelu_quick


def _gelu_erf(layer: Layer) -> Any:
    F32, exp = layer.F32, layer.exp

    @helper
    def gelu_erf(x):
        z = vabs(x) * splat(F32, _SQRT_HALF)
        t = splat(F32, 1.0) / fma(splat(F32, 0.3275911), z, splat(F32, 1.0))
        p = fma(splat(F32, 1.061405429), t, splat(F32, -1.453152027))
        p = fma(p, t, splat(F32, 1.421413741))
        p = fma(p, t, splat(F32, -0.284496736))
        p = fma(p, t, splat(F32, 0.254829592))
        tail = p * t * exp(zero(F32) - z * z)
        return splat(F32, 0.5) * x * select(x < zero(F32), tail, splat(F32, 2.0) - tail)

    return gelu_erf


def _expm1(layer: Layer) -> Any:
    F32, exp = layer.F32, layer.exp

    @helper
    def expm1(x):
        near = fma(x, splat(F32, 1.0 / 720.0), splat(F32, 1.0 / 120.0))
        near = fma(near, x, splat(F32, 1.0 / 24.0))
        near = fma(near, x, splat(F32, 1.0 / 6.0))
        near = fma(near, x, splat(F32, 0.5))
        near = fma(near * x, x, x)
        return select(vabs(x) < splat(F32, 0.3), near, exp(x) - splat(F32, 1.0))

    return expm1


def _elu(layer: Layer) -> Any:
    F32, expm1 = layer.F32, _expm1(layer)

    @helper
    def elu(x):
        return select(x > zero(F32), x, expm1(x))

    return elu


def _softplus(layer: Layer) -> Any:
    F32, exp, log = layer.F32, layer.exp, layer.precise_log

    @helper
    def softplus(x):
        power = exp(x)
        small = power - splat(F32, 0.5) * power * power
        found = select(power < splat(F32, 1e-3), small, log(splat(F32, 1.0) + power))
        return select(x > splat(F32, 20.0), x, found)

    return softplus


def _whole(name: str) -> Any:
    """FLOOR, CEIL, TRUNC, and ROUND, which takes halves away from 0."""

    def maker(layer: Layer) -> Any:
        F32 = layer.F32

        @helper
        def trunc(x):
            cut = convert(types.float32, convert(types.int32, x))
            return select(vabs(x) < splat(F32, _WHOLE), cut, x)

        @helper
        def one_if(mask):
            return select(mask, splat(F32, 1.0), zero(F32))

        @helper
        def floor(x):
            cut = trunc(x)
            return cut - one_if(cut > x)

        @helper
        def ceil(x):
            cut = trunc(x)
            return cut + one_if(cut < x)

        @helper
        def nearest(x):
            cut = trunc(x)
            left = x - cut
            return cut + one_if(left >= splat(F32, 0.5)) - one_if(left <= splat(F32, -0.5))

        return {"FLOOR": floor, "CEIL": ceil, "TRUNC": trunc, "ROUND": nearest}[name]

    return maker


def make_xielu(layer: Layer) -> Any:
    """Return `f(v, alpha_n, alpha_p, beta, eps)`.

    Source: https://arxiv.org/abs/2411.13010; the parameters are those that ggml precomputes.
    """
    F32, expm1 = layer.F32, _expm1(layer)

    @helper
    def xielu(x, alpha_n, alpha_p, beta, eps):
        below = (expm1(minimum(x, splat(F32, eps))) - x) * splat(F32, alpha_n)
        return fma(splat(F32, beta), x, select(x > zero(F32), splat(F32, alpha_p) * x * x, below))

    return xielu


def make_gate(layer: Layer, name: str) -> Any:
    """Return `f(gate, value, alpha, limit)` of a member of `Glu`.

    With limits the gate is at most `limit` and the value within ± `limit`.
    """
    F32, exp = layer.F32, layer.exp
    if name not in ("SWIGLU_OAI", "SWIGLU_CLAMP"):
        activation = make_activation(layer, name)

        @helper
        def plain(gate, value, alpha, limit):
            return activation(gate) * value

        return plain
    oai = name == "SWIGLU_OAI"

    @helper
    def limited(gate, value, alpha, limit):
        one, bound = splat(F32, 1.0), splat(F32, limit)
        gate, value = minimum(bound, gate), maximum(-bound, minimum(bound, value))
        steepness = splat(F32, alpha) if oai else one
        added = one if oai else zero(F32)
        return gate / (one + exp(zero(F32) - steepness * gate)) * (value + added)

    return limited


_MAKERS = {
    **{name: _simple(name) for name in ("ABS", "SGN", "NEG", "STEP", "RELU", "HARDSIGMOID", "HARDSWISH")},
    "EXP": _exp,
    "TANH": _tanh,
    "SIGMOID": _sigmoid,
    "SILU": _silu,
    "GELU": _gelu,
    "GELU_QUICK": _gelu_quick,
    "GELU_ERF": _gelu_erf,
    "ELU": _elu,
    "EXPM1": _expm1,
    "SOFTPLUS": _softplus,
    **{name: _whole(name) for name in ("FLOOR", "CEIL", "TRUNC", "ROUND")},
}
