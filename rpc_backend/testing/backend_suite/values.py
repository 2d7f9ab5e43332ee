"""Results as numbers, and how far two results are apart.

Belongs here: reading bytes as numbers, measures. Must not be here: running anything.
"""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from rpc_backend.graph import ElementType, Tensor
from rpc_backend.graph.element_types import BF16
from rpc_backend.testing.backend_suite.case import Measure
from rpc_backend.testing.backend_suite.leaves import Array


def cells(tensor: Tensor, memory: Array) -> Array:
    """Return a tensor whose first byte is `memory[0]` as an array [n3, n2, n1, n0]; rows of bytes if quantised."""
    shape, strides = list(tensor.ne[::-1]), list(tensor.nb[::-1])
    dtype = tensor.type.dtype
    if dtype is None:
        dtype, shape[3], strides[3] = np.dtype(np.uint8), tensor.type.row_nbytes(tensor.ne[0]), 1
    return np.ndarray(shape, dtype, memory, strides=strides) if memory.size else np.empty(shape, dtype)


def numbers(kind: ElementType, values: Array) -> Array:
    """Return cells as float64."""
    if kind is BF16:
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kind.dtype is None:
        return dequantize(np.ascontiguousarray(values), GGMLQuantizationType(kind.code)).astype(np.float64)
    return values.astype(np.float64)


def covered_bytes(tensor: Tensor, nbytes: int, offset: int) -> Array:
    """Return which of `nbytes` bytes belong to a tensor that begins at `offset`."""
    mask = np.zeros(nbytes, np.uint8)
    width = tensor.type.block_nbytes
    n0 = tensor.ne[0] // tensor.type.block_size
    shape, strides = (*tensor.ne[:0:-1], n0, width), (*tensor.nb[::-1], 1)
    if 0 not in shape:
        np.ndarray(shape, np.uint8, mask, offset, strides)[...] = 1
    return mask.astype(bool)


def difference(measure: Measure, kind: ElementType, ours: Array, oracle: Array, source: Array | None) -> float:
    """Return how far results are apart, in the unit of the measure; infinite where no number says it.

    `source` are the numbers that index results point into.
    """
    if measure == "order":
        assert source is not None
        return _index_difference(ours, oracle, source)
    if measure == "exact":
        if kind.is_quantized:
            return float(np.mean(ours != oracle)) if ours.size else 0.0
        ours, oracle = numbers(kind, ours), numbers(kind, oracle)
        same = (ours == oracle) | (np.isnan(ours) & np.isnan(oracle))
        return 1.0 - float(np.mean(same)) if same.size else 0.0
    return _float_difference(measure, numbers(kind, ours), numbers(kind, oracle))


def _float_difference(measure: Measure, ours: Array, oracle: Array) -> float:
    finite = np.isfinite(oracle)
    odd, odd_oracle = ours[~finite], oracle[~finite]
    same = (odd == odd_oracle) | (np.isnan(odd) & np.isnan(odd_oracle))
    if not np.all(same) or not np.all(np.isfinite(ours[finite])):
        return float("inf")
    gap, size = np.abs(ours[finite] - oracle[finite]), np.abs(oracle[finite])
    if not gap.size:
        return 0.0
    if measure == "relative":
        return float(np.max(gap / (size + 1e-6)))
    power = float(np.sum(size**2))
    error = float(np.sum(gap**2))
    return error / power if power else (float("inf") if error else 0.0)


def _index_difference(ours: Array, oracle: Array, source: Array) -> float:
    """Return the share of rows whose indices are wrong."""
    n_columns = source.shape[-1]
    if not ours.size:
        return 0.0
    if np.any((ours < 0) | (ours >= n_columns)):
        return float("inf")
    ordered = np.sort(ours, axis=-1)
    repeated = np.any(ordered[..., 1:] == ordered[..., :-1], axis=-1)
    picked, wanted = (np.take_along_axis(source, index, axis=-1) for index in (ours, oracle))
    return float(np.mean(repeated | np.any(picked != wanted, axis=-1)))
