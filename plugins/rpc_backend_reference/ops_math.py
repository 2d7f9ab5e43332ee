"""Arithmetic: element by element, over rows, and matrix products.

Belongs here: operations on values alone. Must not be here: attention and rope (`ops_attention`), rows by
index and order (`ops_rows`), copies (`ops_layout`).

Every function takes a placed node and writes its result. Arithmetic is float32 or wider and is rounded
once to the element type of the result.

Source: formulas are those of ggml's CPU backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rpc_backend.plugin_api import Glu, Tensor, Unary
from rpc_backend_reference.arrays import Array, floats, store

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


def log(node: Tensor) -> None:
    """The natural logarithm: -inf of 0, NaN of what is below."""
    store(node, np.log(floats(node.sources[0]).astype(np.float64)))


def clamp(node: Tensor) -> None:
    """x between the bounds `min` and `max`; a NaN stays one."""
    params = node.params
    store(node, np.clip(floats(node.sources[0]), np.float32(params["min"]), np.float32(params["max"])))


def rms_norm(node: Tensor) -> None:
    """x / √(mean of x² over the row + eps)."""
    x = floats(node.sources[0]).astype(np.float64)
    store(node, x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + node.params["eps"]))


def mul_mat(node: Tensor) -> None:
    """Each row of `b` times each row of `a`; heads of `a` repeat in runs: `a` head = `b` head · a2 // b2."""
    a, b = floats(node.sources[0]), floats(node.sources[1])
    (a3, a2, m, k), (b3, b2, n, _) = a.shape, b.shape
    grouped = b.reshape(a3, b3 // a3, a2, b2 // a2, n, k)
    product = grouped @ a.reshape(a3, 1, a2, 1, m, k).swapaxes(-1, -2)
    store(node, product.reshape(b3, b2, n, m))


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
}

_GLU: dict[Glu, Callable[[Array], Array]] = {
    Glu.REGLU: _relu,
    Glu.GEGLU: _gelu,
    Glu.SWIGLU: _silu,
    Glu.GEGLU_ERF: _gelu_erf,
    Glu.GEGLU_QUICK: _gelu_quick,
}


def unary(node: Tensor) -> None:
    function = _UNARY[Unary(int(node.params["function"]))]
    store(node, function(floats(node.sources[0]).astype(np.float64)))


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
    store(node, _GLU[Glu(int(params["function"]))](gate) * value)
