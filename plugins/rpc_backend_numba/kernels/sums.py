"""Running sums, and sums of all.

Belongs here: CUMSUM, SUM. Must not be here: sums of whole rows (`reductions`).
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.kernels.access import address, extent, n_rows, row_address, share, split_row, stride
from rpc_backend_numba.simd import load, store
from rpc_backend_numba.simd.layer import Layer

_F32 = types.float32


def make_total(layer: Layer) -> Any:
    """Return the kernel of SUM: F32, any strides, on one thread, so that rounding is fixed."""

    def total(args, ith, nth):
        if ith != 0:
            return
        found = 0.0
        for row in range(n_rows(args, 1)):
            i1, i2, i3 = split_row(row, args, 1)
            source = row_address(args, 1, i1, i2, i3)
            for i in range(extent(args, 1, 0)):
                found += load(_F32, source + i * stride(args, 1, 0))
        store(address(args, 0), _F32(found))

    return total


def make_cumsum(layer: Layer) -> Any:
    """Return the kernel of CUMSUM: F32, any strides; one addition after the other, so that rounding is fixed."""

    def cumsum(args, ith, nth):
        n, step, out_step = extent(args, 1, 0), stride(args, 1, 0), stride(args, 0, 0)
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            source, out = row_address(args, 1, i1, i2, i3), row_address(args, 0, i1, i2, i3)
            total = _F32(-0.0)
            for i in range(n):
                total = _F32(total + load(_F32, source + i * step))
                store(out + i * out_step, total)

    return cumsum
