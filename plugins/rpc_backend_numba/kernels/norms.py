"""Norms that also look at the mean, or at no mean.

Belongs here: NORM, L2_NORM, GROUP_NORM. Must not be here: RMS_NORM (`reductions`).

Sums are made in float64, element by element: these norms are of short or few rows.
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.kernels.access import (
    element_code,
    extent,
    n_rows,
    param,
    param_float,
    row_address,
    share,
    split_row,
    stride,
)
from rpc_backend_numba.kernels.elements import make_any_element
from rpc_backend_numba.simd import helper, load, store
from rpc_backend_numba.simd.layer import Layer

_F32, _F64 = types.float32, types.float64

EPS, N_GROUPS = 0, 1
"""Parameters: what bounds the divisor; GROUP_NORM: the number of groups."""


def make_norm(layer: Layer, name: str) -> Any:
    """Return the kernel of NORM or L2_NORM: any float types and strides."""
    load_any, store_any = make_any_element(layer)
    centres = name == "NORM"

    @helper
    def mean_of(args, source, n):
        total = 0.0
        for i in range(n):
            total += _F64(load_any(element_code(args, 1), source + i * stride(args, 1, 0)))
        return total / n

    @helper
    def squares_of(args, source, n, mean):
        total = 0.0
        for i in range(n):
            x = _F64(load_any(element_code(args, 1), source + i * stride(args, 1, 0))) - mean
            total += x * x
        return total

    def norm(args, ith, nth):
        n, eps = extent(args, 1, 0), param_float(args, EPS)
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            source, out = row_address(args, 1, i1, i2, i3), row_address(args, 0, i1, i2, i3)
            mean = mean_of(args, source, n) if centres else 0.0
            squares = squares_of(args, source, n, mean)
            factor = 1.0 / (math.sqrt(squares / n + eps) if centres else max(math.sqrt(squares), eps))
            for i in range(n):
                x = _F64(load_any(element_code(args, 1), source + i * stride(args, 1, 0)))
                store_any(element_code(args, 0), out + i * stride(args, 0, 0), _F32((x - mean) * factor))

    return norm


def make_group_norm(layer: Layer) -> Any:
    """Return the kernel of GROUP_NORM: F32; threads share the groups of axis 2, all of one size but the last."""

    @helper
    def moments_of(args, first, last, i3):
        """The mean of channels [first, last), and of the squares of what is off it."""
        n, rows = extent(args, 1, 0), extent(args, 1, 1)
        count = n * rows * (last - first)
        total, squares = 0.0, 0.0
        for channel in range(first, last):
            for row in range(rows):
                source = row_address(args, 1, row, channel, i3)
                for i in range(n):
                    total += load(_F32, source + i * stride(args, 1, 0))
        mean = total / count
        for channel in range(first, last):
            for row in range(rows):
                source = row_address(args, 1, row, channel, i3)
                for i in range(n):
                    x = load(_F32, source + i * stride(args, 1, 0)) - mean
                    squares += x * x
        return mean, squares / count

    def group_norm(args, ith, nth):
        channels, n_groups = extent(args, 1, 2), param(args, N_GROUPS)
        size = (channels + n_groups - 1) // n_groups
        groups = (channels + size - 1) // size
        begin, end = share(groups * extent(args, 1, 3), ith, nth)
        for item in range(begin, end):
            first, i3 = item % groups * size, item // groups
            last = min(channels, first + size)
            mean, variance = moments_of(args, first, last, i3)
            factor = 1.0 / math.sqrt(variance + param_float(args, EPS))
            for channel in range(first, last):
                for row in range(extent(args, 1, 1)):
                    source, out = row_address(args, 1, row, channel, i3), row_address(args, 0, row, channel, i3)
                    for i in range(extent(args, 1, 0)):
                        x = load(_F32, source + i * stride(args, 1, 0))
                        store(out + i * stride(args, 0, 0), _F32((x - mean) * factor))

    return group_norm
