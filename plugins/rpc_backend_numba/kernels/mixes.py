"""What DeepSeek models add: scores of cached tokens, and residual streams that are mixed.

Belongs here: LIGHTNING_INDEXER, DSV4_HC_*. Must not be here: attention (`attention`).

Source: ggml's CPU backend. All go element by element; sums are taken in float64.
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

_F32, _F64 = types.float32, types.float64
_STREAMS = 4


@helper
def _number(args, tensor, i0, i1, i2, i3):
    """An element of an F32 tensor."""
    return _F64(load(_F32, row_address(args, tensor, i1, i2, i3) + i0 * stride(args, tensor, 0)))


def make_indexer(layer: Layer) -> Any:
    """Return the kernel of LIGHTNING_INDEXER: tensors 1 q, 2 k, 3 weights, 4 mask."""
    load_any, _ = make_any_element(layer)

    @helper
    def product(args, head, token, place, stream):
        total, key = 0.0, row_address(args, 2, 0, place, stream)
        for i in range(extent(args, 1, 0)):
            value = load_any(element_code(args, 2), key + i * stride(args, 2, 0))
            total += _F64(value) * _number(args, 1, i, head, token, stream)
        return total

    def indexer(args, ith, nth):
        n_kv, tokens, streams = extent(args, 0, 0), extent(args, 0, 1), extent(args, 0, 3)
        first, last = share(n_kv * tokens * streams, ith, nth)
        for item in range(first, last):
            place, token, stream = item % n_kv, item // n_kv % tokens, item // n_kv // tokens
            total = 0.0
            for head in range(extent(args, 1, 1)):
                found = product(args, head, token, place, stream)
                if found > 0.0:
                    total += found * _number(args, 3, head, token, 0, stream)
            mask = row_address(args, 4, token, 0, stream % extent(args, 4, 3)) + place * stride(args, 4, 0)
            out = row_address(args, 0, token, 0, stream) + place * stride(args, 0, 0)
            store(out, _F32(total + _F64(load_any(element_code(args, 4), mask))))

    return indexer


COMB_EPS, COMB_ROUNDS = 0, 1
"""Parameters of DSV4_HC_COMB."""


def make_hc_comb(layer: Layer) -> Any:
    """Return the kernel of DSV4_HC_COMB: tensors 1 mixes, 2 scale, 3 base; the matrix is worked on in its place."""

    @helper
    def cell(args, row, column, token):
        return row_address(args, 0, row, token, 0) + column * stride(args, 0, 0)

    @helper
    def raw(args, row, column, token):
        index = 2 * _STREAMS + _STREAMS * row + column
        scaled = _number(args, 1, index, token, 0, 0) * _number(args, 2, 2, 0, 0, 0)
        return scaled + _number(args, 3, index, 0, 0, 0)

    @helper
    def soften(args, row, token, eps):
        """Write the softmax of a row, plus eps."""
        most = raw(args, row, 0, token)
        for column in range(1, _STREAMS):
            most = max(most, raw(args, row, column, token))
        total = 0.0
        for column in range(_STREAMS):
            total += math.exp(raw(args, row, column, token) - most)
        for column in range(_STREAMS):
            shared = math.exp(raw(args, row, column, token) - most) / total
            store(cell(args, row, column, token), _F32(shared + eps))

    @helper
    def divide(args, token, eps, along_rows):
        """Divide columns, or rows, by their sums."""
        for outer in range(_STREAMS):
            total = eps
            for inner in range(_STREAMS):
                row, column = (outer, inner) if along_rows else (inner, outer)
                total += _F64(load(_F32, cell(args, row, column, token)))
            for inner in range(_STREAMS):
                row, column = (outer, inner) if along_rows else (inner, outer)
                at = cell(args, row, column, token)
                store(at, _F32(_F64(load(_F32, at)) / total))

    def hc_comb(args, ith, nth):
        eps = param_float(args, COMB_EPS)
        first, last = share(extent(args, 0, 2), ith, nth)
        for token in range(first, last):
            for row in range(_STREAMS):
                soften(args, row, token, eps)
            for turn in range(2 * param(args, COMB_ROUNDS) - 1):
                divide(args, token, eps, turn % 2 == 1)

    return hc_comb


PRE_SCALE, PRE_IS_GATED = 0, 1
"""Parameters of DSV4_HC_PRE."""


def make_hc_pre(layer: Layer) -> Any:
    """Return the kernel of DSV4_HC_PRE: tensors 1 the streams, 2 the weights."""

    def hc_pre(args, ith, nth):
        width, is_gated = extent(args, 0, 0), param(args, PRE_IS_GATED)
        first, last = share(width * extent(args, 0, 1), ith, nth)
        for item in range(first, last):
            i, token, total = item % width, item // width, 0.0
            for stream in range(extent(args, 1, 1)):
                if is_gated:
                    weight = 1.0 / (1.0 + math.exp(-_number(args, 2, i, stream, token, 0)))
                else:
                    weight = _number(args, 2, stream, token, 0, 0)
                total += weight * _number(args, 1, i, stream, token, 0)
            out = row_address(args, 0, token, 0, 0) + i * stride(args, 0, 0)
            store(out, _F32(total * param_float(args, PRE_SCALE)))

    return hc_pre


def make_hc_post(layer: Layer) -> Any:
    """Return the kernel of DSV4_HC_POST: tensors 1 x, 2 residual streams, 3 factors of x, 4 what mixes, if anything."""

    def hc_post(args, ith, nth):
        is_mixed = address(args, 4) != 0
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            stream, token, _ = split_row(row, args, 0)
            out, factor = row_address(args, 0, stream, token, 0), _number(args, 3, stream, token, 0, 0)
            for i in range(extent(args, 0, 0)):
                total = _number(args, 1, i, token, 0, 0) * factor
                if is_mixed:
                    for other in range(extent(args, 2, 1)):
                        total += _number(args, 2, i, other, token, 0) * _number(args, 4, stream, other, token, 0)
                else:
                    total += _number(args, 2, i, stream, token, 0)
                store(out + i * stride(args, 0, 0), _F32(total))

    return hc_post
