"""Tensors made from constants, widened, shifted, or overwritten in part.

Belongs here: SET, ACC, PAD, ROLL, TRI, DIAG, DIAG_MASK_*, FILL, ARANGE, TIMESTEP_EMBEDDING. Must not be here: copies
(`ops_layout`), arithmetic (`ops_math`).

Source: ggml's CPU backend.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rpc_backend.plugin_api import Tensor, Triangle
from rpc_backend_reference.arrays import cells, floats, store


def overwrite(*, add: bool) -> Callable[[Tensor], None]:
    """Return SET, or ACC if it adds: a copy of `a` with `b` in a window of it."""

    def run(node: Tensor) -> None:
        a, b = (floats(source) for source in node.sources)
        params = node.params
        result = np.ascontiguousarray(a).copy()
        strides = (*(int(params[f"nb{axis}"]) for axis in (3, 2, 1)), 4)
        window = np.ndarray(b.shape, np.float32, result.data, int(params["offset"]), strides)
        window[...] = window + b if add else b
        store(node, result)

    return run


def pad(node: Tensor) -> None:
    params = node.params
    widths = [(int(params[f"before{axis}"]), int(params[f"after{axis}"])) for axis in (3, 2, 1, 0)]
    store(node, np.pad(floats(node.sources[0]), widths, "wrap" if params["circular"] else "constant"))


def roll(node: Tensor) -> None:
    shifts = [int(node.params[f"shift{axis}"]) for axis in (3, 2, 1, 0)]
    store(node, np.roll(floats(node.sources[0]), shifts, axis=(0, 1, 2, 3)))


def triangle(node: Tensor) -> None:
    kind, x = Triangle(int(node.params["triangle"])), floats(node.sources[0])
    row, column = np.arange(x.shape[2])[:, None], np.arange(x.shape[3])
    kept = {
        Triangle.UPPER_DIAGONAL: column >= row,
        Triangle.UPPER: column > row,
        Triangle.LOWER_DIAGONAL: column <= row,
        Triangle.LOWER: column < row,
    }[kind]
    store(node, np.where(kept, x, np.float32(0)))


def diagonal(node: Tensor) -> None:
    x = floats(node.sources[0])
    store(node, np.where(np.eye(x.shape[3], dtype=bool), x, np.float32(0)))


def diagonal_mask(value: float) -> Callable[[Tensor], None]:
    """Return the operation that puts `value` behind element n_past + i of row i."""

    def run(node: Tensor) -> None:
        x = floats(node.sources[0])
        row, column = np.arange(x.shape[2])[:, None], np.arange(x.shape[3])
        store(node, np.where(column > row + int(node.params["n_past"]), np.float32(value), x))

    return run


def fill(node: Tensor) -> None:
    cells(node)[...] = node.params["value"]


def arange(node: Tensor) -> None:
    params = node.params
    steps = np.arange(node.ne[0], dtype=np.float32) * np.float32(params["step"])
    store(node, np.float32(params["start"]) + steps.reshape(1, 1, 1, -1))


def timestep_embedding(node: Tensor) -> None:
    """cos, then sin, of t · max_period^(-j / half) for j below half = dim // 2; an odd last element is 0."""
    params = node.params
    half = int(params["dim"]) // 2
    frequencies = np.exp(-np.log(np.float64(params["max_period"])) * np.arange(half) / max(half, 1))
    angles = floats(node.sources[0])[0, 0, 0][:, None].astype(np.float64) * frequencies  # [n, half]
    result = np.zeros((angles.shape[0], node.ne[0]))
    result[:, :half], result[:, half : 2 * half] = np.cos(angles), np.sin(angles)
    store(node, result[None, None])
