"""Which elements UPSCALE takes for each element of its result, and how much of each.

Belongs here: these tables, which are the meaning of its modes. Must not be here: applying them (backends).

Source: ggml's CPU backend, whose places are computed in float32; so they are here, for the nearest element to be the
same. Bicubic weights are those of convolution with a = -0.75, the smoothed ones those of a triangle filter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rpc_backend.graph.ops.functions import Interpolation
from rpc_backend.graph.ops.rules_images import ALIGN_CORNERS, ANTIALIAS
from rpc_backend.graph.tensor import Tensor

_CUBIC = np.float32(-0.75)
_ONE, _HALF = np.float32(1), np.float32(0.5)
_Floats = npt.NDArray[Any]


class Taps(NamedTuple):
    """Of one axis: per element of the result the indices of elements of the source, and their weights.

    Shapes: both [n, taps]; int64 and float32.
    """

    indices: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


def taps_of(node: Tensor) -> tuple[Taps, Taps, Taps, Taps]:
    """Return the taps of each axis of an UPSCALE node; the last two axes have one each, of weight 1."""
    mode, source = int(node.params["mode"]), node.sources[0]
    first, second = (_taps(source.ne[axis], node.ne[axis], mode) for axis in (0, 1))
    return first, second, _nearest(source.ne[2], node.ne[2], 0), _nearest(source.ne[3], node.ne[3], 0)


def _taps(n_in: int, n_out: int, mode: int) -> Taps:
    kind = mode & 0xFF
    if kind == Interpolation.NEAREST:
        return _nearest(n_in, n_out, mode)
    if kind == Interpolation.BICUBIC:
        return _cubic(n_in, n_out, mode)
    return _smoothed(n_in, n_out, mode) if mode & ANTIALIAS else _linear(n_in, n_out, mode)


def _factor(n_in: int, n_out: int, mode: int) -> np.float32:
    if mode & ALIGN_CORNERS and n_in > 1 and n_out > 1:
        return np.float32(n_out - 1) / np.float32(n_in - 1)
    return np.float32(n_out) / np.float32(n_in)


def _places(n_in: int, n_out: int, mode: int) -> _Floats:
    """Return where the elements of the result lie between those of the source, whose centres are whole numbers."""
    shift = np.float32(0) if mode & ALIGN_CORNERS else _HALF
    return (np.arange(n_out, dtype=np.float32) + shift) / _factor(n_in, n_out, mode) - shift


def _nearest(n_in: int, n_out: int, mode: int) -> Taps:
    places = np.arange(n_out, dtype=np.float32) / _factor(n_in, n_out, mode)
    indices = np.minimum(places.astype(np.int64), n_in - 1)[:, None]
    return Taps(indices, np.ones_like(indices, np.float32))


def _linear(n_in: int, n_out: int, mode: int) -> Taps:
    places = _places(n_in, n_out, mode)
    indices = np.clip(np.floor(places).astype(np.int64)[:, None] + np.arange(2), 0, n_in - 1)
    share = np.clip(places - indices[:, 0].astype(np.float32), 0, 1)
    return Taps(indices, np.stack([_ONE - share, share], axis=1).astype(np.float32))


def _cubic(n_in: int, n_out: int, mode: int) -> Taps:
    places = _places(n_in, n_out, mode)
    first = np.floor(places)
    rest = places - first
    indices = np.clip(first.astype(np.int64)[:, None] + np.arange(-1, 3), 0, n_in - 1)
    weights = [_outer(rest + _ONE), _inner(rest), _inner(_ONE - rest), _outer(np.float32(2) - rest)]
    return Taps(indices, np.stack(weights, axis=1).astype(np.float32))


def _inner(x: _Floats) -> _Floats:
    return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1


def _outer(x: _Floats) -> _Floats:
    return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC


def _smoothed(n_in: int, n_out: int, mode: int) -> Taps:
    factor = _factor(n_in, n_out, mode)
    shift = np.float32(0) if mode & ALIGN_CORNERS else _HALF
    reach = np.maximum(_ONE, _ONE / factor)
    places = (np.arange(n_out, dtype=np.float32) + shift) / factor
    first = np.maximum((places - reach + shift).astype(np.int64), 0)
    last = np.minimum((places + reach + shift).astype(np.int64), n_in)
    indices = first[:, None] + np.arange(max(1, int((last - first).max())))
    distance = np.abs((indices.astype(np.float32) - places[:, None] + shift) / reach)
    weights = np.where(indices < last[:, None], np.maximum(_ONE - distance, 0), 0)
    total = weights.sum(axis=1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return Taps(np.minimum(indices, n_in - 1), weights.astype(np.float32))
