"""States that decay and learn token by token, of which each row is its own.

Belongs here: SSM_SCAN, RWKV_WKV6, RWKV_WKV7. Must not be here: the delta rule, whose rows answer first (`states`).

Source: ggml's CPU backend; the selective scan is https://arxiv.org/abs/2405.21060, RWKV https://arxiv.org/abs/2404.05892
and https://arxiv.org/abs/2503.14456.
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.kernels.access import address, extent, param, report_index, row_address, share
from rpc_backend_numba.kernels.copies import copy_bytes
from rpc_backend_numba.simd import extract, fma, helper, hsum, load, load_at, splat, store, store_at, zero
from rpc_backend_numba.simd.layer import Layer

_F32, _F64, _I32 = types.float32, types.float64, types.int32
_SOFT = 20.0  # above it log(1 + exp(x)) is x

(SCAN_STATES, SCAN_N_STATES, SCAN_DECAY, SCAN_DECAYS, SCAN_IDS, SCAN_ID_STEP, SCAN_SNAPSHOTS) = range(7)
"""Parameters of SSM_SCAN: address and number of the states, address of the decays and how many a head has, address of
the ids and the bytes between them, the number of states kept."""


def make_ssm_scan(layer: Layer) -> Any:
    """Return the kernel of SSM_SCAN: tensors 1 x, 2 steps, 3 b, 4 c, all with packed rows; packed result.

    Threads share the rows of all states.
    """
    F32, lanes, exp = layer.F32, layer.lanes, layer.exp

    @helper
    def scan_one_decay(row, decay, moved, b, c, size):
        """Let a row decay and learn; return what it then answers to c."""
        total, i = zero(F32), 0
        while i + lanes <= size:
            kept = fma(load(F32, b + 4 * i), splat(F32, moved), load(F32, row + 4 * i) * splat(F32, decay))
            store(row + 4 * i, kept)
            total = fma(kept, load(F32, c + 4 * i), total)
            i += lanes
        rest = hsum(total)
        while i < size:
            one = load_at(_F32, row, i) * decay + load_at(_F32, b, i) * moved
            store_at(_F32, row, i, one)
            rest += one * load_at(_F32, c, i)
            i += 1
        return rest

    @helper
    def scan_decays(row, decays, step, moved, b, c, size):
        """As `scan_one_decay`, with a decay for each element."""
        total, i = zero(F32), 0
        while i + lanes <= size:
            decay = exp(load(F32, decays + 4 * i) * splat(F32, step))
            kept = fma(load(F32, b + 4 * i), splat(F32, moved), load(F32, row + 4 * i) * decay)
            store(row + 4 * i, kept)
            total = fma(kept, load(F32, c + 4 * i), total)
            i += lanes
        rest = hsum(total)
        while i < size:
            decay = extract(exp(splat(F32, load_at(_F32, decays, i) * step)), 0)
            one = load_at(_F32, row, i) * decay + load_at(_F32, b, i) * moved
            store_at(_F32, row, i, one)
            rest += one * load_at(_F32, c, i)
            i += 1
        return rest

    @helper
    def one_token(args, row, at, head, token, stream, size):
        group = head // (extent(args, 1, 1) // extent(args, 3, 1))
        b, c = row_address(args, 3, group, token, stream), row_address(args, 4, group, token, stream)
        raw = _F64(load(_F32, row_address(args, 2, token, stream, 0) + 4 * head))
        step = _F32(raw if raw > _SOFT else math.log1p(math.exp(raw)))
        moved = load_at(_F32, row_address(args, 1, head, token, stream), at) * step
        decays = param(args, SCAN_DECAY) + 4 * head * param(args, SCAN_DECAYS)
        if param(args, SCAN_DECAYS) == 1:
            decay = extract(exp(splat(F32, load(_F32, decays) * step)), 0)
            return scan_one_decay(row, decay, moved, b, c, size)
        return scan_decays(row, decays, step, moved, b, c, size)

    def ssm_scan(args, ith, nth):
        dim, heads, tokens, streams = extent(args, 1, 0), extent(args, 1, 1), extent(args, 1, 2), extent(args, 1, 3)
        size, snapshots, limit = extent(args, 3, 0), param(args, SCAN_SNAPSHOTS), param(args, SCAN_N_STATES)
        n_out, n_rows = dim * heads * tokens * streams, dim * heads
        begin, end = share(n_rows * streams, ith, nth)
        for item in range(begin, end):
            inner, stream = item % n_rows, item // n_rows
            at, head = inner % dim, inner // dim
            which = load(_I32, param(args, SCAN_IDS) + stream * param(args, SCAN_ID_STEP))
            if not 0 <= which < limit:
                report_index(args, which, limit)
                continue
            row = address(args, 0) + 4 * (n_out + item * size)
            copy_bytes(param(args, SCAN_STATES) + 4 * (which * n_rows + inner) * size, row, 4 * size)
            for token in range(tokens):
                out = address(args, 0) + 4 * ((stream * tokens + token) * n_rows + inner)
                store(out, one_token(args, row, at, head, token, stream, size))
                snapshot = tokens - 1 - token
                if 0 < snapshot < snapshots:
                    copy_bytes(row, row + 4 * snapshot * streams * n_rows * size, 4 * size)

    return ssm_scan


RWKV_STATE, RWKV_STREAMS, RWKV_FIRST = 0, 1, 2
"""Parameters of RWKV_WKV6: address of the states, their number, address of the factors of what is new. Of RWKV_WKV7 the
first two, then address, bytes between heads and bytes between tokens of a and of b."""
_RWKV_A, _RWKV_B = 2, 5


def make_rwkv_wkv6(layer: Layer) -> Any:
    """Return the kernel of RWKV_WKV6: tensors 1 k, 2 v, 3 r, 4 decays, of packed rows; threads share heads."""
    F32, lanes = layer.F32, layer.lanes

    @helper
    def one_row(row, out, value, key, query, first, decay, size):
        """Add what a row of a state answers to the output, and let it decay and learn."""
        weighed, i = query * key * first, 0
        while i + lanes <= size:
            old, v = load(F32, row + 4 * i), load(F32, value + 4 * i)
            answer = fma(v, splat(F32, weighed), old * splat(F32, query))
            store(out + 4 * i, load(F32, out + 4 * i) + answer)
            store(row + 4 * i, fma(v, splat(F32, key), old * splat(F32, decay)))
            i += lanes
        while i < size:
            old, v = load_at(_F32, row, i), load_at(_F32, value, i)
            store_at(_F32, out, i, load_at(_F32, out, i) + (v * weighed + old * query))
            store_at(_F32, row, i, v * key + old * decay)
            i += 1

    @helper
    def one_token(args, state, out, head, token, size):
        key, value = row_address(args, 1, head, token, 0), row_address(args, 2, head, token, 0)
        query, decay = row_address(args, 3, head, token, 0), row_address(args, 4, head, token, 0)
        first = param(args, RWKV_FIRST) + 4 * head * size
        for i in range(size):
            store_at(_F32, out, i, _F32(0.0))
        for i in range(size):
            k, r = load_at(_F32, key, i), load_at(_F32, query, i)
            one_row(
                state + 4 * size * i, out, value, k, r, load_at(_F32, first, i), load_at(_F32, decay, i), size
            )  # fmt: skip

    return _over_heads(one_token)


def make_rwkv_wkv7(layer: Layer) -> Any:
    """Return the kernel of RWKV_WKV7: tensors 1 r, 2 decays, 3 k, 4 v, of packed rows; threads share heads."""
    F32, lanes = layer.F32, layer.lanes

    @helper
    def dot(row, other, size):
        total, i = zero(F32), 0
        while i + lanes <= size:
            total = fma(load(F32, row + 4 * i), load(F32, other + 4 * i), total)
            i += lanes
        rest = hsum(total)
        while i < size:
            rest += load_at(_F32, row, i) * load_at(_F32, other, i)
            i += 1
        return rest

    @helper
    def learn(row, decay, key, other, value, removed, size):
        i = 0
        while i + lanes <= size:
            kept = load(F32, row + 4 * i) * load(F32, decay + 4 * i)
            kept = fma(load(F32, key + 4 * i), splat(F32, value), kept)
            store(row + 4 * i, fma(load(F32, other + 4 * i), splat(F32, removed), kept))
            i += lanes
        while i < size:
            kept = load_at(_F32, row, i) * load_at(_F32, decay, i) + load_at(_F32, key, i) * value
            store_at(_F32, row, i, kept + load_at(_F32, other, i) * removed)
            i += 1

    @helper
    def beside(args, first, head, token):
        """The row of a head and token of what has no place among the tensors."""
        return param(args, first) + head * param(args, first + 1) + token * param(args, first + 2)

    @helper
    def one_token(args, state, out, head, token, size):
        query, decay = row_address(args, 1, head, token, 0), row_address(args, 2, head, token, 0)
        key, value = row_address(args, 3, head, token, 0), row_address(args, 4, head, token, 0)
        a, b = beside(args, _RWKV_A, head, token), beside(args, _RWKV_B, head, token)
        for i in range(size):
            row = state + 4 * size * i
            learn(row, decay, key, b, load_at(_F32, value, i), dot(row, a, size), size)
            store_at(_F32, out, i, dot(row, query, size))

    return _over_heads(one_token)


def _over_heads(one_token: Any) -> Any:
    """Return the kernel that takes each head's state through the tokens of its stream; tensor 1 has the extents.

    `one_token(args, state, out, head, token, size)` changes a state and writes its answer.
    """

    def rwkv(args, ith, nth):
        size, heads, tokens = extent(args, 1, 0), extent(args, 1, 1), extent(args, 1, 2)
        streams = param(args, RWKV_STREAMS)
        per_stream = tokens // streams
        begin, end = share(heads * streams, ith, nth)
        for item in range(begin, end):
            head, stream = item % heads, item // heads
            state = address(args, 0) + 4 * (size * heads * tokens + item * size * size)
            copy_bytes(param(args, RWKV_STATE) + 4 * item * size * size, state, 4 * size * size)
            for token in range(stream * per_stream, (stream + 1) * per_stream):
                one_token(args, state, address(args, 0) + 4 * (token * heads + head) * size, head, token, size)

    return rwkv
