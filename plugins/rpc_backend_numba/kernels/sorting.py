"""Order within rows.

Belongs here: ARGSORT. Must not be here: the largest elements alone (`selection`).

All rows are F32. Of equal values the lower index comes first.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.kernels.access import extent, n_rows, param, row_address, share, split_row, stride
from rpc_backend_numba.simd import helper, load, load_at, store_at
from rpc_backend_numba.simd.layer import Layer

_F32, _I32, _I64 = types.float32, types.int32, types.int64

DESCENDING = 0
"""Parameter of ARGSORT: 1 puts the largest first."""


@helper
def _value(source, step, index):
    return load(_F32, source + step * index)


@helper
def _comes_after(source, step, a, b, descending):
    """Whether index `a` belongs behind index `b`."""
    x, y = _value(source, step, a), _value(source, step, b)
    if x == y:
        return a > b
    return x < y if descending else x > y


@helper
def _sift(heap, size, at, item, source, step, descending):
    """Put `item` at `at` of a heap whose first element comes last, and restore the heap below it."""
    while 2 * at + 1 < size:
        child = 2 * at + 1
        index = _I64(load_at(_I32, heap, child))
        if child + 1 < size:
            other = _I64(load_at(_I32, heap, child + 1))
            if _comes_after(source, step, other, index, descending):
                child, index = child + 1, other
        if not _comes_after(source, step, index, item, descending):
            break
        store_at(_I32, heap, at, index)
        at = child
    store_at(_I32, heap, at, item)


@helper
def _first_sorted(source, step, n, heap, k, descending):
    """Write the indices of the `k` that come first of `n`, in order."""
    for i in range(k):
        store_at(_I32, heap, i, i)
    for at in range(k // 2 - 1, -1, -1):
        _sift(heap, k, at, _I64(load_at(_I32, heap, at)), source, step, descending)
    for i in range(k, n):
        if _comes_after(source, step, _I64(load_at(_I32, heap, 0)), i, descending):
            _sift(heap, k, 0, i, source, step, descending)
    for size in range(k - 1, 0, -1):
        last = _I64(load_at(_I32, heap, size))
        store_at(_I32, heap, size, load_at(_I32, heap, 0))
        _sift(heap, size, 0, last, source, step, descending)


def make_argsort(layer: Layer) -> Any:
    """Return the kernel of ARGSORT; the result has packed rows."""

    def argsort(args, ith, nth):
        n, k, step = extent(args, 1, 0), extent(args, 0, 0), stride(args, 1, 0)
        descending = param(args, DESCENDING) != 0
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            source, heap = row_address(args, 1, i1, i2, i3), row_address(args, 0, i1, i2, i3)
            _first_sorted(source, step, n, heap, k, descending)

    return argsort
