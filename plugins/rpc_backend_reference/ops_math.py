"""Arithmetic: element by element, and over rows.

Belongs here: operations on values alone. Must not be here: products (`ops_products`), attention and
rope (`ops_attention`), rows by index and order (`ops_rows`), copies (`ops_layout`).

Every function takes a placed node and writes its result. Arithmetic is float32 or wider and is rounded
once to the element type of the result.

Source: formulas are those of ggml's CPU backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from rpc_backend.plugin_api import Glu, Tensor, Unary
from rpc_backend_reference.arrays import Array, cells, floats, store

_erf = np.vectorize(math.erf, otypes=[np.float64])


def binary(function: Callable[[Array, Array], Array]) -> Callable[[Tensor], None]:
    """Return the operation that applies `function` to the first source and the repeated second."""

    def run(node: Tensor) -> None:
        a, b = floats(node.sources[0]), floats(node.sources[1])
        store(node, function(a, tiled(b, a.shape)))

    return run


def tiled(values: Array, shape: tuple[int, ...]) -> Array:
    """Repeat `values` whole along each axis until they have `shape`."""
    if 0 in shape:
        return np.empty(shape, values.dtype)
    return np.tile(values, [want // have for want, have in zip(shape, values.shape, strict=True)])


def scale(node: Tensor) -> None:
    """x · scale + bias."""
    params = node.params
    store(node, floats(node.sources[0]) * np.float32(params["scale"]) + np.float32(params["bias"]))


def sum_rows(node: Tensor) -> None:
    store(node, floats(node.sources[0]).sum(axis=-1, dtype=np.float64, keepdims=True))


def cumsum(node: Tensor) -> None:
    """The sum of each row up to every element, added from left to right in float32."""
    store(node, np.add.accumulate(floats(node.sources[0]), axis=-1, dtype=np.float32))


def function(compute: Callable[[Array], Array]) -> Callable[[Tensor], None]:
    """Return the operation that applies `compute` to each element in float64.

    The logarithm is -inf of 0, and NaN of what is below, as is the square root.
    """

    def run(node: Tensor) -> None:
        store(node, compute(floats(node.sources[0]).astype(np.float64)))

    return run


def leaky_relu(node: Tensor) -> None:
    """x where it is above 0, else x · slope."""
    x = floats(node.sources[0]).astype(np.float64)
    store(node, np.where(x > 0, x, x * node.params["slope"]))


def clamp(node: Tensor) -> None:
    """x between the bounds `min` and `max`; a NaN stays one."""
    params = node.params
    store(node, np.clip(floats(node.sources[0]), np.float32(params["min"]), np.float32(params["max"])))


def rms_norm(node: Tensor) -> None:
    """x / √(mean of x² over the row + eps)."""
    x = floats(node.sources[0]).astype(np.float64)
    store(node, x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + node.params["eps"]))


def norm(node: Tensor) -> None:
    """(x - mean) / √(variance + eps) over the row."""
    x = floats(node.sources[0]).astype(np.float64)
    centred = x - x.mean(axis=-1, keepdims=True)
    store(node, centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + node.params["eps"]))


def l2_norm(node: Tensor) -> None:
    """x / max(√(sum of x² over the row), eps)."""
    x = floats(node.sources[0]).astype(np.float64)
    store(node, x / np.maximum(np.sqrt(np.sum(x * x, axis=-1, keepdims=True)), node.params["eps"]))


def group_norm(node: Tensor) -> None:
    """The norm of each group of channels; all groups are of one size, rounded up, but the last."""
    params = node.params
    x = floats(node.sources[0]).astype(np.float64)
    size = -(-x.shape[1] // int(params["n_groups"]))
    for first in range(0, x.shape[1], size):
        group = x[:, first : first + size]
        centred = group - group.mean(axis=(1, 2, 3), keepdims=True)
        variance = np.mean(centred * centred, axis=(1, 2, 3), keepdims=True)
        x[:, first : first + size] = centred / np.sqrt(variance + params["eps"])
    store(node, x)


def total(node: Tensor) -> None:
    store(node, floats(node.sources[0]).sum(dtype=np.float64).reshape(1, 1, 1, 1))


def mean(node: Tensor) -> None:
    store(node, floats(node.sources[0]).mean(axis=-1, dtype=np.float64, keepdims=True))


def count_equal(node: Tensor) -> None:
    a, b = (cells(source) for source in node.sources)
    store(node, np.array(np.count_nonzero(a == b)).reshape(1, 1, 1, 1))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def _relu(x: Array) -> Array:
    return np.where(x > 0, x, 0)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


def _gelu_erf(x: Array) -> Array:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def _gelu_quick(x: Array) -> Array:
    return x * _sigmoid(1.702 * x)


def _hard_sigmoid(x: Array) -> Array:
    return np.clip((x + 3) / 6, 0, 1)


def _softplus(x: Array) -> Array:
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def _rounded(x: Array) -> Array:
    """To the nearest whole number, halves away from 0."""
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


_UNARY: dict[Unary, Callable[[Array], Array]] = {
    Unary.ABS: np.abs,
    Unary.SGN: np.sign,
    Unary.NEG: np.negative,
    Unary.STEP: lambda x: x > 0,
    Unary.TANH: np.tanh,
    Unary.ELU: lambda x: np.where(x > 0, x, np.expm1(x)),
    Unary.RELU: _relu,
    Unary.SIGMOID: _sigmoid,
    Unary.GELU: _gelu,
    Unary.GELU_QUICK: _gelu_quick,
    Unary.SILU: _silu,
    Unary.HARDSWISH: lambda x: x * _hard_sigmoid(x),
    Unary.HARDSIGMOID: _hard_sigmoid,
    Unary.EXP: np.exp,
    Unary.EXPM1: np.expm1,
    Unary.SOFTPLUS: _softplus,
    Unary.GELU_ERF: _gelu_erf,
    Unary.FLOOR: np.floor,
    Unary.CEIL: np.ceil,
    Unary.ROUND: _rounded,
    Unary.TRUNC: np.trunc,
}

_GLU: dict[Glu, Callable[[Array], Array]] = {
    Glu.REGLU: _relu,
    Glu.GEGLU: _gelu,
    Glu.SWIGLU: _silu,
    Glu.GEGLU_ERF: _gelu_erf,
    Glu.GEGLU_QUICK: _gelu_quick,
}


def unary(node: Tensor) -> None:
    params = node.params
    function = Unary(int(params["function"]))
    x = floats(node.sources[0]).astype(np.float64)
    store(node, _xielu(x, params) if function is Unary.XIELU else _UNARY[function](x))


def _xielu(x: Array, params: Mapping[str, int | float]) -> Array:
    """Source: https://arxiv.org/abs/2411.13010; the parameters are those that ggml precomputes."""
    below = (np.expm1(np.minimum(x, params["eps"])) - x) * params["alpha_n"]
    return np.where(x > 0, params["alpha_p"] * x * x, below) + params["beta"] * x


def glu(node: Tensor) -> None:
    """activation(gate) · value. Of one source the gate is the first half of each row, the second if swapped;
    of two the gate is the first, whether swapped or not."""
    params = node.params
    if len(node.sources) == 2:
        gate, value = (floats(source).astype(np.float64) for source in node.sources)
    else:
        gate, value = np.split(floats(node.sources[0]).astype(np.float64), 2, axis=-1)
        if params["swapped"]:
            gate, value = value, gate
    kind = Glu(int(params["function"]))
    if kind in (Glu.SWIGLU_OAI, Glu.SWIGLU_CLAMP):
        store(node, _limited(kind, gate, value, params))
    else:
        store(node, _GLU[kind](gate) * value)


def _limited(kind: Glu, gate: Array, value: Array, params: Mapping[str, int | float]) -> Array:
    """The gate at most `limit`, the value within ± `limit`; SWIGLU_OAI: gate · σ(alpha · gate) · (value + 1)."""
    limit = params["limit"]
    gate, value = np.minimum(gate, limit), np.clip(value, -limit, limit)
    if kind is Glu.SWIGLU_OAI:
        return gate * _sigmoid(params["alpha"] * gate) * (value + 1)
    return _silu(gate) * value
