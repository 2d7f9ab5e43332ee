"""The largest elements of rows.

Belongs here: ARGMAX and TOP_K. Must not be here: whole orders (`sorting`).

All rows are F32. The largest comes first, of equals the lower index, and a NaN is larger than any number. Packed rows
are looked through by the vector for what can still matter, which soon is little.
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.kernels.access import address, extent, n_rows, param, row_address, share, split_row, stride
from rpc_backend_numba.simd import (
    all_lanes,
    f32_bits,
    helper,
    hmax,
    load,
    load_at,
    maximum,
    select,
    splat,
    store,
    store_at,
    zero,
)
from rpc_backend_numba.simd.layer import Layer

_F32, _I32, _I64 = types.float32, types.int32, types.int64
_LARGEST = 0x7FFF_FFFF
_LOWER = 0xFFFF_FFFF


@helper
def _value(source, step, index):
    return load(_F32, source + step * index)


@helper
def _is_larger(x, y):
    """Whether `x` is larger than `y`, not equal; a NaN is larger than any number and equal to a NaN."""
    return x > y or (x != x and y == y)


def make_argmax(layer: Layer) -> Any:
    """Return the kernel of ARGMAX over the rows of a matrix."""
    F32, lanes = layer.F32, layer.lanes

    @helper
    def packed_best(source, n):
        """Return the largest number of the whole vectors of a row, NaN if one is among them, and where they end."""
        a, b = splat(F32, -math.inf), splat(F32, -math.inf)
        odd, i = zero(F32), 0
        while i + 2 * lanes <= n:
            x, y = load(F32, source + 4 * i), load(F32, source + 4 * (i + lanes))
            a, b = maximum(x, a), maximum(y, b)
            odd = select(x == x, odd, x)
            odd = select(y == y, odd, y)
            i += 2 * lanes
        if not all_lanes(odd == odd):
            return _F32(math.nan), i
        return hmax(maximum(a, b)), i

    @helper
    def first_place(source, step, n, best):
        """Return the first index of `best` in a row that has it."""
        i = 0
        if step == 4 and best == best:
            wanted = splat(F32, best)
            while i + lanes <= n and all_lanes(load(F32, source + 4 * i) != wanted):
                i += lanes
        while i < n:
            x = _value(source, step, i)
            if x == best or (x != x and best != best):
                break
            i += 1
        return i

    def argmax(args, ith, nth):
        n, step = extent(args, 1, 0), stride(args, 1, 0)
        first, last = share(extent(args, 1, 1), ith, nth)
        for row in range(first, last):
            source = address(args, 1) + row * stride(args, 1, 1)
            best, start = packed_best(source, n) if step == 4 else (_F32(-math.inf), 0)
            for i in range(start, n):
                x = _value(source, step, i)
                if _is_larger(x, best):
                    best = x
            store(address(args, 0) + row * stride(args, 0, 0), _I32(first_place(source, step, n, best)))

    return argmax


@helper
def _key(x, index):
    """A number that is larger for what comes first: the value in order in the upper half, the lower index below."""
    bits = f32_bits(_F32(x + _F32(0.0)))  # -0.0 is 0.0
    order = bits ^ ((bits >> _I32(31)) & _I32(_LARGEST))
    if x != x:
        order = _I32(_LARGEST)
    return (_I64(order) << 32) + (_LOWER - index)


@helper
def _index_of(key):
    return _LOWER - (key & _LOWER)


@helper
def _sift(heap, size, at, item):
    """Put `item` at `at` of a heap whose first key is its least, and restore the heap below it."""
    while 2 * at + 1 < size:
        child = 2 * at + 1
        key = load_at(_I64, heap, child)
        if child + 1 < size:
            other = load_at(_I64, heap, child + 1)
            is_less = other < key
            key = other if is_less else key
            child = child + 1 if is_less else child
        if key >= item:
            break
        store_at(_I64, heap, at, key)
        at = child
    store_at(_I64, heap, at, item)


HEAPS = 0
"""Parameter of TOP_K: the memory of each thread, for as many keys as the result has columns."""


def make_top_k(layer: Layer) -> Any:
    """Return the kernel of TOP_K: as many indices per row as the packed result has.

    A heap holds the keys of the best so far; later elements matter only if they are larger than its least.
    """
    F32, lanes = layer.F32, layer.lanes

    @helper
    def skip(source, i, n, bound):
        """Return the next place of a packed row where a vector holds more than `bound`, or is not whole."""
        bounds = splat(F32, bound)
        while i + 4 * lanes <= n:
            x, y = load(F32, source + 4 * i), load(F32, source + 4 * (i + lanes))
            z, w = load(F32, source + 4 * (i + 2 * lanes)), load(F32, source + 4 * (i + 3 * lanes))
            if not all_lanes(((x <= bounds) & (y <= bounds)) & ((z <= bounds) & (w <= bounds))):
                break
            i += 4 * lanes
        while i + lanes <= n and all_lanes(load(F32, source + 4 * i) <= bounds):
            i += lanes
        return i

    @helper
    def fill(source, step, n, heap, k):
        for i in range(k):
            store_at(_I64, heap, i, _key(_value(source, step, i), i))
        for at in range(k // 2 - 1, -1, -1):
            _sift(heap, k, at, load_at(_I64, heap, at))
        i = k
        while i < n:
            least = load_at(_I64, heap, 0)
            if step == 4:
                i = skip(source, i, n, _value(source, step, _index_of(least)))
            end = min(n, i + lanes)
            while i < end:
                key = _key(_value(source, step, i), i)
                if key > least:
                    _sift(heap, k, 0, key)
                    least = load_at(_I64, heap, 0)
                i += 1

    def top_k(args, ith, nth):
        n, k, step = extent(args, 1, 0), extent(args, 0, 0), stride(args, 1, 0)
        heap = param(args, HEAPS) + ith * param(args, HEAPS + 1)
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            out = row_address(args, 0, i1, i2, i3)
            fill(row_address(args, 1, i1, i2, i3), step, n, heap, k)
            for size in range(k - 1, -1, -1):
                store_at(_I32, out, size, _index_of(load_at(_I64, heap, 0)))
                _sift(heap, size, 0, load_at(_I64, heap, size))

    return top_k
