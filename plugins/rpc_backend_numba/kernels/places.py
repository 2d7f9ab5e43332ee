"""Tensors made from constants, shifted, or kept in part.

Belongs here: FILL, TRI, DIAG, DIAG_MASK_*, ROLL, PAD, TIMESTEP_EMBEDDING, COUNT_EQUAL, OUT_PROD. Must not be here:
copies (`copies`), arithmetic element by element (`elementwise`).

All go element by element; their tensors are F32 where nothing else is said.
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.kernels.access import (
    address,
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

_F32, _F64, _I32, _I64 = types.float32, types.float64, types.int32, types.int64


def make_fill(layer: Layer) -> Any:
    """Return the kernel that writes parameter 0 over a tensor of any float type."""
    _, store_any = make_any_element(layer)

    def fill(args, ith, nth):
        value = _F32(param_float(args, 0))
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            out = row_address(args, 0, i1, i2, i3)
            for i in range(extent(args, 0, 0)):
                store_any(element_code(args, 0), out + i * stride(args, 0, 0), value)

    return fill


LEAST, MOST, VALUE = 0, 1, 2
"""Parameters of `band`."""


def make_band(layer: Layer) -> Any:
    """Return the kernel that keeps an element if its column less its row is in [LEAST, MOST], and writes VALUE else.

    Tensor 1 may have one row, which is then that of all.
    """

    def band(args, ith, nth):
        least, most, value = param(args, LEAST), param(args, MOST), _F32(param_float(args, VALUE))
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            source, out = row_address(args, 1, i1 % extent(args, 1, 1), i2, i3), row_address(args, 0, i1, i2, i3)
            for i in range(extent(args, 0, 0)):
                kept = value
                if least <= i - i1 <= most:
                    kept = load(_F32, source + i * stride(args, 1, 0))
                store(out + i * stride(args, 0, 0), kept)

    return band


def make_wrap(layer: Layer) -> Any:
    """Return the kernel that repeats tensor 1 along each axis, moved by parameter i along axis i."""

    @helper
    def moved(args, index, axis):
        return (index - param(args, axis)) % extent(args, 1, axis)

    def wrap(args, ith, nth):
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            source = row_address(args, 1, moved(args, i1, 1), moved(args, i2, 2), moved(args, i3, 3))
            out = row_address(args, 0, i1, i2, i3)
            for i in range(extent(args, 0, 0)):
                value = load(_F32, source + moved(args, i, 0) * stride(args, 1, 0))
                store(out + i * stride(args, 0, 0), value)

    return wrap


FREQUENCIES, N_FREQUENCIES = 0, 1
"""Parameters of TIMESTEP_EMBEDDING: address of a float64 each, and their number."""


def make_timestep(layer: Layer) -> Any:
    """Return the kernel of TIMESTEP_EMBEDDING: tensor 1 the steps; what is left of a row is 0."""

    def timestep(args, ith, nth):
        half, table, step = param(args, N_FREQUENCIES), param(args, FREQUENCIES), stride(args, 0, 0)
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            out = row_address(args, 0, row, 0, 0)
            at = _F64(load(_F32, address(args, 1) + row * stride(args, 1, 0)))
            for i in range(half):
                angle = at * load(_F64, table + 8 * i)
                store(out + i * step, _F32(math.cos(angle)))
                store(out + (half + i) * step, _F32(math.sin(angle)))
            for i in range(2 * half, extent(args, 0, 0)):
                store(out + i * step, _F32(0.0))

    return timestep


def make_count_equal(layer: Layer) -> Any:
    """Return the kernel of COUNT_EQUAL: two tensors of I32, the result one I64."""

    def count_equal(args, ith, nth):
        if ith != 0:
            return
        count = 0
        for row in range(n_rows(args, 1)):
            i1, i2, i3 = split_row(row, args, 1)
            a, b = row_address(args, 1, i1, i2, i3), row_address(args, 2, i1, i2, i3)
            for i in range(extent(args, 1, 0)):
                if load(_I32, a + i * stride(args, 1, 0)) == load(_I32, b + i * stride(args, 2, 0)):
                    count += 1
        store(address(args, 0), _I64(count))

    return count_equal


def make_out_prod(layer: Layer) -> Any:
    """Return the kernel of OUT_PROD: rows of the result are sums of rows of tensor 1, weighed by tensor 2."""

    def out_prod(args, ith, nth):
        repeat2, repeat3 = extent(args, 2, 2) // extent(args, 1, 2), extent(args, 2, 3) // extent(args, 1, 3)
        step, out_step = stride(args, 1, 0), stride(args, 0, 0)
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            out = row_address(args, 0, i1, i2, i3)
            for i in range(extent(args, 0, 0)):
                total = 0.0
                for k in range(extent(args, 1, 1)):
                    a = load(_F32, row_address(args, 1, k, i2 // repeat2, i3 // repeat3) + i * step)
                    b = load(_F32, row_address(args, 2, k, i2, i3) + i1 * stride(args, 2, 0))
                    total += _F64(a) * _F64(b)
                store(out + i * out_step, _F32(total))

    return out_prod
