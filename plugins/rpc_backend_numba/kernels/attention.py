"""FLASH_ATTN_EXT: attention in one pass over keys and values, without a matrix of scores.

Belongs here: the passes over blocks of positions and the online softmax. Must not be here: decoding of rows
(`row_codecs`) or register tiles (`simd.tiles`).

A work item is one key head of one stream with up to 12 query rows: the tokens and heads that share it. Blocks of
positions that the mask hides from all rows are skipped, so the cost grows with the positions in use. What a hidden
position's keys and values hold never matters.

Source: the online softmax of https://arxiv.org/abs/1805.02867.
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.atomics import code_call
from rpc_backend_numba.attention_scratch import BLOCK, TILE_ROWS, Region
from rpc_backend_numba.element_codes import F16 as F16_CODE
from rpc_backend_numba.formats import UNIT_COLUMNS
from rpc_backend_numba.kernels.access import (
    address,
    element_code,
    extent,
    param,
    param_float,
    row_address,
    share,
    stride,
)
from rpc_backend_numba.kernels.row_codecs import make_decoder
from rpc_backend_numba.simd import (
    extract,
    helper,
    hmax,
    hsum,
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
from rpc_backend_numba.simd.tiles import (
    tile_load_scaled,
    tile_step_float,
    tile_store,
    tile_zero,
    transpose_square,
)

SCRATCH, SCRATCH_STRIDE, SLOPES, SCALE, SOFTCAP, KEY_CODEC, VALUE_CODEC, REGIONS = 0, 1, 2, 3, 4, 5, 6, 7
"""Parameters; from REGIONS on the offsets of `attention_scratch.Region`. Tensors: 1 q, 2 k, 3 v, 4 mask."""

_call_codec = code_call(3)

_F32 = types.float32
_QUERIES, _KEYS, _PANEL, _VALUES = Region.QUERIES.value, Region.KEYS.value, Region.PANEL.value, Region.VALUES.value
_SCORES, _BIAS, _RESULT, _SEEN = Region.SCORES.value, Region.BIAS.value, Region.RESULT.value, Region.SEEN.value
_LARGEST, _SUM, _FACTOR = Region.LARGEST.value, Region.SUM.value, Region.FACTOR.value
_ROW_NBYTES = 4 * BLOCK
_HIDDEN = _F32(-math.inf)


def make_attention(layer: Layer, element_types: str) -> Any:
    """Return the kernel for keys and values that are both `F16` or both `F32`, or for `any` by its row codecs."""
    load_queries, store_result = _make_ends(layer)
    fill_bias = _make_fill_bias(layer)
    fill_values = _make_fill_values(layer, _make_row_decoder(layer, element_types, VALUE_CODEC))
    score_block = _make_score_block(layer, _make_row_decoder(layer, element_types, KEY_CODEC))
    soften = _make_soften(layer)
    gather_block = _make_gather_block(layer)

    @helper
    def item(args, base, n_rows, first_row, kv_head, stream):
        load_queries(args, base, n_rows, first_row, kv_head, stream)
        n_kv = extent(args, 2, 1)
        for start in range(0, n_kv, BLOCK):
            if fill_bias(args, base, n_rows, first_row, kv_head, stream, start):
                count = min(BLOCK, n_kv - start)
                score_block(args, base, n_rows, kv_head, stream, start, count)
                for row in range(n_rows):
                    soften(args, base, row)
                fill_values(args, base, kv_head, stream, start, count)
                gather_block(args, base, n_rows, count)
        store_result(args, base, n_rows, first_row, kv_head, stream)

    def attention(args, ith, nth):
        kv_heads = extent(args, 2, 2)
        all_rows = extent(args, 1, 1) * (extent(args, 1, 2) // kv_heads)
        chunks = (all_rows + TILE_ROWS - 1) // TILE_ROWS
        base = param(args, SCRATCH) + ith * param(args, SCRATCH_STRIDE)
        first, last = share(chunks * kv_heads * extent(args, 1, 3), ith, nth)
        for work in range(first, last):
            first_row = work % chunks * TILE_ROWS
            head = work // chunks
            item(args, base, min(TILE_ROWS, all_rows - first_row), first_row, head % kv_heads, head // kv_heads)

    return attention


@helper
def _region(args, base, region):
    return base + param(args, REGIONS + region)


@helper
def _token_and_head(args, row, kv_head):
    """The token and the query head of a row of an item."""
    group = extent(args, 1, 2) // extent(args, 2, 2)
    return row // group, kv_head * group + row % group


@helper
def _kv_row(args, tensor, position, kv_head, stream):
    repeat = extent(args, 1, 3) // extent(args, 2, 3)
    return row_address(args, tensor, position, kv_head, stream // repeat)


def _make_row_decoder(layer: Layer, element_types: str, codec: int) -> Any:
    """Return `decode(args, source, target, n)`: a row of keys or values as float32."""
    if element_types == "any":

        @helper
        def decode_any(args, source, target, n):
            _call_codec(param(args, codec), source, target, n)

        return decode_any
    decode_row = make_decoder(layer, element_types)

    @helper
    def decode(args, source, target, n):
        decode_row(source, target, n)

    return decode


def _make_ends(layer: Layer) -> tuple[Any, Any]:
    """Return what begins an item (queries in, sums at zero) and what ends it (the result out)."""
    F32, lanes = layer.F32, layer.lanes

    @helper
    def load_queries(args, base, n_rows, first_row, kv_head, stream):
        n, step = extent(args, 1, 0), stride(args, 1, 0)
        softcap, factor = param_float(args, SOFTCAP), param_float(args, SCALE)
        if softcap != 0:
            factor /= softcap
        width = (extent(args, 3, 0) + lanes - 1) // lanes * lanes
        for row in range(TILE_ROWS):
            unit = _region(args, base, _QUERIES) + row // UNIT_COLUMNS * UNIT_COLUMNS * 4 * n
            place = unit + 4 * (row % UNIT_COLUMNS)
            token, head = _token_and_head(args, first_row + (row if row < n_rows else 0), kv_head)
            source = row_address(args, 1, token, head, stream)
            for i in range(n):
                store(place + 4 * UNIT_COLUMNS * i, _F32(load(_F32, source + i * step) * factor))
            store_at(_F32, _region(args, base, _LARGEST), row, _HIDDEN)
            store_at(_F32, _region(args, base, _SUM), row, 0.0)
            store_at(_F32, _region(args, base, _FACTOR), row, 1.0)
            for i in range(width):
                store_at(_F32, _region(args, base, _RESULT), row * width + i, 0.0)
        keys = _region(args, base, _KEYS)
        for i in range(0, (_region(args, base, _PANEL) - keys) // 4, lanes):
            store(keys + 4 * i, zero(F32))

    @helper
    def store_result(args, base, n_rows, first_row, kv_head, stream):
        n = extent(args, 3, 0)
        width = (n + lanes - 1) // lanes * lanes
        for row in range(n_rows):
            token, head = _token_and_head(args, first_row + row, kv_head)
            total = load_at(_F32, _region(args, base, _SUM), row)
            inverse = _F32(1.0) / total if total != 0 else _F32(0.0)
            out = row_address(args, 0, head, token, stream)
            source = _region(args, base, _RESULT) + 4 * row * width
            for i in range(n):
                store(out + 4 * i, load(_F32, source + 4 * i) * inverse)

    return load_queries, store_result


def _make_fill_bias(layer: Layer) -> Any:
    """Return `fill(…, start)`: what the mask adds to each row's scores; whether any row sees any position."""
    F32, lanes, load_half, half_value = layer.F32, layer.lanes, layer.load_half, layer.half_value

    @helper
    def mask_row(args, row, kv_head, stream):
        token, head = _token_and_head(args, row, kv_head)
        return row_address(args, 4, token, head % extent(args, 4, 2), stream % extent(args, 4, 3)), head

    @helper
    def one_bias(mask, position, slope, code):
        if mask == 0:
            return _F32(0.0)
        if code == F16_CODE:
            return half_value(load_at(types.uint16, mask, position)) * slope
        return load_at(_F32, mask, position) * slope

    @helper
    def bias_vector(mask, position, n_kv, slope, code):
        if position + lanes <= n_kv:
            if mask == 0:
                return zero(F32)
            if code == F16_CODE:
                return load_half(mask + 2 * position) * splat(F32, slope)
            return load(F32, mask + 4 * position) * splat(F32, slope)
        return splat(F32, _HIDDEN)

    @helper
    def fill_bias(args, base, n_rows, first_row, kv_head, stream, start):
        n_kv, code = extent(args, 2, 1), element_code(args, 4)
        seen = _region(args, base, _SEEN)
        for at in range(0, BLOCK, lanes):
            store(seen + 4 * at, splat(F32, _HIDDEN))
        any_seen = splat(F32, _HIDDEN)
        for row in range(n_rows):
            mask, slope = address(args, 4), _F32(1.0)
            if mask != 0:
                mask, head = mask_row(args, first_row + row, kv_head, stream)
                slope = load_at(_F32, param(args, SLOPES), head)
            place = _region(args, base, _BIAS) + row * _ROW_NBYTES
            for at in range(0, BLOCK, lanes):
                store(place + 4 * at, bias_vector(mask, start + at, n_kv, slope, code))
            for position in range(start + (n_kv - start) // lanes * lanes, min(n_kv, start + BLOCK)):
                store_at(_F32, place, position - start, one_bias(mask, position, slope, code))
            for at in range(0, BLOCK, lanes):
                bias = load(F32, place + 4 * at)
                both = maximum(bias, load(F32, seen + 4 * at))
                store(seen + 4 * at, both)
                any_seen = maximum(both, any_seen)
        return hmax(any_seen) > _HIDDEN

    return fill_bias


def _make_score_block(layer: Layer, decode: Any) -> Any:
    """Return `score(…)`: q · k of all rows and the positions of a block, where any of a vector of them is seen."""
    F32, lanes = layer.F32, layer.lanes
    transpose = transpose_square(layer.F32)
    strips = {width: _score_strip(layer, width) for width in (4, 8, 12)}
    narrow, middle, wide = strips[4], strips[8], strips[12]

    @helper
    def score_block(args, base, n_rows, kv_head, stream, start, count):
        n = extent(args, 2, 0)
        row_nbytes = (n + lanes - 1) // lanes * lanes * 4
        keys, panel = _region(args, base, _KEYS), _region(args, base, _PANEL)
        seen = _region(args, base, _SEEN)
        for at in range(0, count, lanes):
            if hmax(load(F32, seen + 4 * at)) == _HIDDEN:
                continue
            for i in range(lanes):
                if load_at(_F32, seen, at + i) > _HIDDEN:
                    decode(args, _kv_row(args, 2, start + at + i, kv_head, stream), keys + i * row_nbytes, n)
            for i in range(0, n, lanes):
                transpose(keys + 4 * i, row_nbytes, panel + 4 * lanes * i)
            queries, scores = _region(args, base, _QUERIES), _region(args, base, _SCORES) + 4 * at
            if n_rows > 8:
                wide(panel, queries, n, scores)
            elif n_rows > 4:
                middle(panel, queries, n, scores)
            else:
                narrow(panel, queries, n, scores)

    return score_block


def _score_strip(layer: Layer, width: int) -> Any:
    zeros, step, put = tile_zero(layer.F32, width), tile_step_float(layer.F32, width), tile_store(layer.F32, width)
    lanes = layer.lanes

    @helper
    def strip(panel, queries, n, out):
        unit_stride = 4 * UNIT_COLUMNS * n
        total = zeros()
        for i in range(n):
            total = step(total, panel + 4 * lanes * i, queries + 4 * UNIT_COLUMNS * i, unit_stride)
        put(total, out, _ROW_NBYTES, width)

    return strip


def _make_soften(layer: Layer) -> Any:
    """Return `soften(…, row)`: scores of a block become weights; the row's largest, sum and factor follow."""
    F32, lanes, exp, tanh = layer.F32, layer.lanes, layer.exp, layer.tanh

    @helper
    def add_bias(args, scores, bias, at):
        value, added = load(F32, scores + 4 * at), load(F32, bias + 4 * at)
        softcap = param_float(args, SOFTCAP)
        if softcap != 0:
            value = tanh(value) * splat(F32, softcap)
        return select(added == splat(F32, _HIDDEN), added, value + added)

    @helper
    def soften(args, base, row):
        scores, bias = _region(args, base, _SCORES) + row * _ROW_NBYTES, _region(args, base, _BIAS) + row * _ROW_NBYTES
        before = load_at(_F32, _region(args, base, _LARGEST), row)
        top = splat(F32, before)
        for at in range(0, BLOCK, lanes):
            value = add_bias(args, scores, bias, at)
            store(scores + 4 * at, value)
            top = maximum(value, top)
        largest = hmax(top)
        factor, total = _F32(1.0), zero(F32)
        if largest == _HIDDEN:
            for at in range(0, BLOCK, lanes):
                store(scores + 4 * at, zero(F32))
        else:
            factor = extract(exp(splat(F32, before - largest)), 0)
            for at in range(0, BLOCK, lanes):
                weight = exp(load(F32, scores + 4 * at) - splat(F32, largest))
                store(scores + 4 * at, weight)
                total = total + weight
        store_at(_F32, _region(args, base, _LARGEST), row, largest)
        store_at(_F32, _region(args, base, _FACTOR), row, factor)
        sums = _region(args, base, _SUM)
        store_at(_F32, sums, row, load_at(_F32, sums, row) * factor + hsum(total))

    return soften


def _make_fill_values(layer: Layer, decode: Any) -> Any:
    """Return `fill(…)`: the values of a block as float32, zeros for positions that no row sees."""
    F32, lanes = layer.F32, layer.lanes

    @helper
    def fill_values(args, base, kv_head, stream, start, count):
        n = extent(args, 3, 0)
        width = (n + lanes - 1) // lanes * lanes
        seen, values = _region(args, base, _SEEN), _region(args, base, _VALUES)
        for i in range(count):
            place = values + 4 * width * i
            if width != n or load_at(_F32, seen, i) == _HIDDEN:
                for at in range(0, width, lanes):
                    store(place + 4 * at, zero(F32))
            if load_at(_F32, seen, i) > _HIDDEN:
                decode(args, _kv_row(args, 3, start + i, kv_head, stream), place, n)

    return fill_values


def _make_gather_block(layer: Layer) -> Any:
    """Return `gather(…)`: add the weighted values of a block to the rows' results."""
    strips = {width: _gather_strip(layer, width) for width in (4, 8, 12)}
    narrow, middle, wide = strips[4], strips[8], strips[12]

    @helper
    def gather_block(args, base, n_rows, count):
        n = extent(args, 3, 0)
        values, scores = _region(args, base, _VALUES), _region(args, base, _SCORES)
        result, factors = _region(args, base, _RESULT), _region(args, base, _FACTOR)
        if n_rows > 8:
            wide(values, scores, count, n, result, factors)
        elif n_rows > 4:
            middle(values, scores, count, n, result, factors)
        else:
            narrow(values, scores, count, n, result, factors)

    return gather_block


def _gather_strip(layer: Layer, width: int) -> Any:
    get, put = tile_load_scaled(layer.F32, width), tile_store(layer.F32, width)
    step, lanes = tile_step_float(layer.F32, width, _ROW_NBYTES), layer.lanes

    @helper
    def strip(values, scores, count, n, result, factors):
        row_nbytes = (n + lanes - 1) // lanes * lanes * 4
        for at in range(0, n, lanes):
            total = get(result + 4 * at, row_nbytes, factors)
            for i in range(count):
                total = step(total, values + row_nbytes * i + 4 * at, scores + 4 * i, 0)
            put(total, result + 4 * at, row_nbytes, width)

    return strip
