"""Operations that carry a state from token to token.

Belongs here: SSM_CONV, GATED_DELTA_NET, GATED_LINEAR_ATTN, SOLVE_TRI. Must not be here: attention over a cache.

Source: ggml's CPU backend; the gated delta rule is https://arxiv.org/abs/2412.06464, gated linear attention
https://arxiv.org/abs/2312.06635.
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.formats import STATE_ROWS
from rpc_backend_numba.kernels.access import address, extent, param, param_float, row_address, share, stride
from rpc_backend_numba.kernels.copies import copy_bytes
from rpc_backend_numba.simd import extract, fma, helper, hsum, load, load_at, splat, store, store_at, zero
from rpc_backend_numba.simd.layer import Layer

_F32, _F64 = types.float32, types.float64


def make_ssm_conv(layer: Layer) -> Any:
    """Return the kernel of SSM_CONV: tensors 1 [width - 1 + tokens, channels, streams], 2 [width, channels].

    Threads share channels; of each, a token is the sum of the window that ends at it.
    """
    F32, lanes = layer.F32, layer.lanes

    @helper
    def some_tokens(source, kernel, step, width):
        """As many tokens as a vector has lanes."""
        total = zero(F32)
        for i in range(width):
            total = fma(load(F32, source + 4 * i), splat(F32, load(_F32, kernel + step * i)), total)
        return total

    @helper
    def one_token(source, source_step, kernel, step, width):
        total = _F32(0.0)
        for i in range(width):
            total += load(_F32, source + source_step * i) * load(_F32, kernel + step * i)
        return total

    def ssm_conv(args, ith, nth):
        width, channels, n_tokens = extent(args, 2, 0), extent(args, 0, 0), extent(args, 0, 1)
        step, kernel_step, out_step = stride(args, 1, 0), stride(args, 2, 0), stride(args, 0, 1)
        first, last = share(channels * extent(args, 0, 2), ith, nth)
        for item in range(first, last):
            channel, stream = item % channels, item // channels
            source, kernel = row_address(args, 1, channel, stream, 0), row_address(args, 2, channel, 0, 0)
            out = row_address(args, 0, 0, stream, 0) + channel * stride(args, 0, 0)
            token = 0
            while step == 4 and token + lanes <= n_tokens:
                found = some_tokens(source + 4 * token, kernel, kernel_step, width)
                for lane in range(lanes):
                    store(out + (token + lane) * out_step, extract(found, lane))
                token += lanes
            while token < n_tokens:
                store(out + token * out_step, one_token(source + step * token, step, kernel, kernel_step, width))
                token += 1

    return ssm_conv


(
    SCRATCH, SCRATCH_STRIDE, SNAPSHOTS, BETA, BETA_HEAD, BETA_TOKEN, BETA_STREAM, STATE, STATE_ROW, STATE_HEAD,
    STATE_STREAM,
) = range(11)  # fmt: skip
"""Parameters of GATED_DELTA_NET: memory for rows of a state and for the factors of a row; the number of states kept;
address and strides of what has no place among the tensors."""


def make_gated_delta_net(layer: Layer) -> Any:
    """Return the kernel of GATED_DELTA_NET: tensors 1 q, 2 k, 3 v, 4 gate, all with packed rows; packed result.

    Rows of a state do not depend on each other: a work item is up to `STATE_ROWS` of them with all tokens.
    """
    F32, lanes, exp = layer.F32, layer.lanes, layer.exp

    @helper
    def exp_one(x):
        return extract(exp(splat(F32, x)), 0)

    @helper
    def forget(args, gate, factors, size):
        """Fill the factor of each element of a row."""
        if extent(args, 4, 0) == 1:
            one = exp_one(load(_F32, gate))
            for i in range(size):
                store_at(_F32, factors, i, one)
            return
        for i in range(size):
            store_at(_F32, factors, i, exp_one(load_at(_F32, gate, i)))

    @helper
    def answer(row, factors, key, size):
        """Let a row forget, and give what it then answers to the key."""
        total, i = zero(F32), 0
        while i + lanes <= size:
            kept = load(F32, row + 4 * i) * load(F32, factors + 4 * i)
            store(row + 4 * i, kept)
            total = fma(kept, load(F32, key + 4 * i), total)
            i += lanes
        rest = hsum(total)
        while i < size:
            one = load_at(_F32, row, i) * load_at(_F32, factors, i)
            store_at(_F32, row, i, one)
            rest += one * load_at(_F32, key, i)
            i += 1
        return rest

    @helper
    def learn(row, delta, key, query, size):
        """Move a row along the key, and give what it then answers to the query."""
        total, i = zero(F32), 0
        while i + lanes <= size:
            moved = fma(splat(F32, delta), load(F32, key + 4 * i), load(F32, row + 4 * i))
            store(row + 4 * i, moved)
            total = fma(moved, load(F32, query + 4 * i), total)
            i += lanes
        rest = hsum(total)
        while i < size:
            one = load_at(_F32, row, i) + delta * load_at(_F32, key, i)
            store_at(_F32, row, i, one)
            rest += one * load_at(_F32, query, i)
            i += 1
        return rest

    @helper
    def keep(args, rows, first, count, head, stream, snapshot):
        """Write rows of a state to the result."""
        size, heads, tokens, streams = extent(args, 3, 0), extent(args, 3, 1), extent(args, 3, 2), extent(args, 3, 3)
        n_out = size * heads * tokens * streams
        place = n_out + (((snapshot * streams + stream) * heads + head) * size + first) * size
        copy_bytes(rows, address(args, 0) + 4 * place, 4 * size * count)

    @helper
    def one_token(args, rows, factors, first, count, head, stream, token):
        size, heads, tokens = extent(args, 3, 0), extent(args, 3, 1), extent(args, 3, 2)
        shared_head = head % extent(args, 1, 1)
        shared_stream = stream // (extent(args, 3, 3) // extent(args, 1, 3))
        query, key = (
            row_address(args, 1, shared_head, token, shared_stream),
            row_address(args, 2, shared_head, token, shared_stream),
        )
        value, scale = row_address(args, 3, head, token, stream), _F32(1.0 / math.sqrt(size))
        at = head * param(args, BETA_HEAD) + token * param(args, BETA_TOKEN) + stream * param(args, BETA_STREAM)
        beta = load(_F32, param(args, BETA) + at)
        out = address(args, 0) + 4 * (((stream * tokens + token) * heads + head) * size + first)
        forget(args, row_address(args, 4, head, token, stream), factors, size)
        for i in range(count):
            row = rows + 4 * size * i
            delta = (load_at(_F32, value, first + i) - answer(row, factors, key, size)) * beta
            store_at(_F32, out, i, learn(row, delta, key, query, size) * scale)

    def gated_delta_net(args, ith, nth):
        size, heads, tokens, streams = extent(args, 3, 0), extent(args, 3, 1), extent(args, 3, 2), extent(args, 3, 3)
        snapshots, blocks = param(args, SNAPSHOTS), (size + STATE_ROWS - 1) // STATE_ROWS
        rows = param(args, SCRATCH) + ith * param(args, SCRATCH_STRIDE)
        factors = rows + 4 * STATE_ROWS * size
        begin, end = share(blocks * heads * streams, ith, nth)
        for item in range(begin, end):
            first, head, stream = item % blocks * STATE_ROWS, item // blocks % heads, item // blocks // heads
            count = min(STATE_ROWS, size - first)
            state = param(args, STATE) + head * param(args, STATE_HEAD) + stream * param(args, STATE_STREAM)
            for i in range(count):
                copy_bytes(state + (first + i) * param(args, STATE_ROW), rows + 4 * size * i, 4 * size)
            if tokens == 0:
                keep(args, rows, first, count, head, stream, 0)
            for token in range(tokens):
                one_token(args, rows, factors, first, count, head, stream, token)
                if tokens - 1 - token < snapshots:
                    keep(args, rows, first, count, head, stream, tokens - 1 - token)

    return gated_delta_net


LINEAR_SCALE, LINEAR_STATE, LINEAR_STREAM = 0, 1, 2
"""Parameters of GATED_LINEAR_ATTN: the factor of the outputs, address of the states, bytes between streams."""


def make_gated_linear_attn(layer: Layer) -> Any:
    """Return the kernel of GATED_LINEAR_ATTN: tensors 1 k, 2 v, 3 q, 4 gate, of packed rows; threads share heads."""

    @helper
    def one_token(args, state, out, head, token, size):
        key, value = row_address(args, 1, head, token, 0), row_address(args, 2, head, token, 0)
        query, gate = row_address(args, 3, head, token, 0), row_address(args, 4, head, token, 0)
        scale = _F32(param_float(args, LINEAR_SCALE))
        for j in range(size):
            store_at(_F32, out, j, 0.0)
        for i in range(size):
            row, k, q, g = state + 4 * size * i, load_at(_F32, key, i), load_at(_F32, query, i), load_at(_F32, gate, i)
            for j in range(size):
                moved = load_at(_F32, row, j) * g + k * load_at(_F32, value, j)
                store_at(_F32, row, j, moved)
                store_at(_F32, out, j, load_at(_F32, out, j) + moved * q * scale)

    def gated_linear_attn(args, ith, nth):
        size, heads, tokens = extent(args, 1, 0), extent(args, 1, 1), extent(args, 1, 2)
        streams = (extent(args, 0, 1) - tokens) // size
        begin, end = share(heads * streams, ith, nth)
        for item in range(begin, end):
            head, stream = item % heads, item // heads
            state = address(args, 0) + 4 * (size * heads * tokens + (stream * heads + head) * size * size)
            source = param(args, LINEAR_STATE) + stream * param(args, LINEAR_STREAM) + 4 * head * size * size
            copy_bytes(source, state, 4 * size * size)
            per_stream = tokens // streams
            for token in range(stream * per_stream, (stream + 1) * per_stream):
                out = address(args, 0) + 4 * (token * heads + head) * size
                one_token(args, state, out, head, token, size)

    return gated_linear_attn


def make_solve_tri(layer: Layer) -> Any:
    """Return the kernel of SOLVE_TRI: tensors 1 lower triangles, 2 right sides; threads share columns."""

    def solve_tri(args, ith, nth):
        columns, n, n2 = extent(args, 0, 0), extent(args, 0, 1), extent(args, 0, 2)
        begin, end = share(columns * n2 * extent(args, 0, 3), ith, nth)
        step, column_step, out_step = stride(args, 1, 0), stride(args, 2, 0), stride(args, 0, 0)
        for item in range(begin, end):
            column, matrix = item % columns, item // columns
            i2, i3 = matrix % n2, matrix // n2
            out = row_address(args, 0, 0, i2, i3) + column * out_step
            for i in range(n):
                row = row_address(args, 1, i, i2, i3)
                total = _F64(load(_F32, row_address(args, 2, i, i2, i3) + column * column_step))
                for j in range(i):
                    total -= _F64(load(_F32, row + j * step)) * _F64(load(_F32, out + j * stride(args, 0, 1)))
                store(out + i * stride(args, 0, 1), _F32(total / _F64(load(_F32, row + i * step))))

    return solve_tri
