"""FLASH_ATTN_EXT: attention in one pass over keys and values, without a matrix of scores.

Belongs here: the passes over blocks of positions and the online softmax. Must not be here: decoding of rows
(`row_codecs`), what is done with values (`attention_values`) or register tiles (`simd.tiles`).

A work item is one key head of one stream with up to 48 query rows: the tokens and heads that share it. Rows are
multiplied in tiles of up to 12, but keys and values are decoded once for all. Blocks of positions that the mask hides
from all rows are skipped, so the cost grows with the positions in use. What a hidden position's keys and values hold
never matters.

A row's result does not depend on the rows beside it: scores are summed along the head, weighted values along the
positions, both in order, and the largest score so far changes only at multiples of the block.

Source: the online softmax of https://arxiv.org/abs/1805.02867.
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.atomics import code_call
from rpc_backend_numba.attention_scratch import BLOCK, ITEM_ROWS, TILE_ROWS, Region
from rpc_backend_numba.formats import FORMATS, UNIT_COLUMNS
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
from rpc_backend_numba.kernels.attention_mask import make_mask_vector, make_see_block
from rpc_backend_numba.kernels.attention_values import make_fill_values, make_gather_block, region
from rpc_backend_numba.kernels.claims import claim
from rpc_backend_numba.kernels.convert import ELEMENT_NBYTES
from rpc_backend_numba.kernels.row_codecs import make_decoder
from rpc_backend_numba.layout import CACHE_LINE
from rpc_backend_numba.simd import (
    extract,
    helper,
    hmax,
    hsum,
    load,
    load_at,
    maximum,
    prefetch,
    select,
    splat,
    store,
    store_at,
    zero,
)
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.simd.tiles import (
    tile_step_float,
    tile_store,
    tile_zero,
    transpose_square,
)

SCRATCH, SCRATCH_STRIDE, CLAIMS, SLOPES, SCALE, SOFTCAP, KEY_CODEC, VALUE_CODEC, SINKS, SINK_STEP = range(10)
"""Parameters. SINKS: address of a float32 per query head, or 0;
then (`attention_values.REGIONS`) the offsets of `attention_scratch.Region`. Tensors: 1 q, 2 k, 3 v, 4 mask."""

_call_codec = code_call(3)

_F32, _I64 = types.float32, types.int64
_QUERIES, _KEYS, _PANEL = Region.QUERIES.value, Region.KEYS.value, Region.PANEL.value
_SCORES, _RESULT, _SEEN, _EDGE = Region.SCORES.value, Region.RESULT.value, Region.SEEN.value, Region.EDGE.value
_LARGEST, _SUM, _FACTOR = Region.LARGEST.value, Region.SUM.value, Region.FACTOR.value
_MASKS, _SLOPES = Region.MASKS.value, Region.SLOPES.value
_ROW_NBYTES = 4 * BLOCK
_HIDDEN = _F32(-math.inf)
_ITEMS_PER_THREAD = 4
"""How many work items a thread should get before they are made larger."""


def make_attention(layer: Layer, element_types: str) -> Any:
    """Return the kernel for keys and values of one type of `INLINED_TYPES`, or for `any` by its row codecs."""
    mask_vector = make_mask_vector(layer)
    see_block = make_see_block(layer, mask_vector)
    fetch_row = _make_fetch_row(element_types)
    load_queries, store_result = _make_ends(layer)
    fill_values = make_fill_values(layer, _make_row_decoder(layer, element_types, VALUE_CODEC), fetch_row)
    score_block = _make_score_block(layer, _make_row_decoder(layer, element_types, KEY_CODEC), fetch_row)
    soften = _make_soften(layer, mask_vector)
    gather_block = make_gather_block(layer)

    @helper
    def item(args, base, n_rows, first_row, kv_head, stream):
        load_queries(args, base, n_rows, first_row, kv_head, stream)
        kv_stream = stream // (extent(args, 1, 3) // extent(args, 2, 3))
        keys, values = row_address(args, 2, 0, kv_head, kv_stream), row_address(args, 3, 0, kv_head, kv_stream)
        seen, masks, edge = region(args, base, _SEEN), region(args, base, _MASKS), region(args, base, _EDGE)
        for start in range(0, extent(args, 2, 1), BLOCK):
            count = see_block(args, seen, masks, edge, n_rows, start)
            if count > 0:
                key_rows, value_rows = keys + start * stride(args, 2, 1), values + start * stride(args, 3, 1)
                score_block(args, base, n_rows, key_rows, value_rows, count)
                following = key_rows + BLOCK * stride(args, 2, 1)
                if start + BLOCK >= extent(args, 2, 1):
                    following = keys + stride(args, 2, 2)
                fill_values(args, base, value_rows, following, count)
                soften(args, base, n_rows, start, count)
                for tile in range(0, n_rows, TILE_ROWS):
                    gather_block(args, base, tile, n_rows - tile, count)
        store_result(args, base, n_rows, first_row, kv_head, stream)

    def attention(args, ith, nth):
        kv_heads = extent(args, 2, 2)
        all_rows = extent(args, 1, 1) * (extent(args, 1, 2) // kv_heads)
        heads = kv_heads * extent(args, 1, 3)
        tiles = (all_rows + TILE_ROWS - 1) // TILE_ROWS
        item_rows = TILE_ROWS * max(1, min(ITEM_ROWS // TILE_ROWS, tiles * heads // (nth * _ITEMS_PER_THREAD)))
        chunks = (all_rows + item_rows - 1) // item_rows
        base = param(args, SCRATCH) + ith * param(args, SCRATCH_STRIDE)
        is_claimed = nth > 1 and chunks * heads >= _ITEMS_PER_THREAD * nth
        for turn in range(nth if is_claimed else 1):
            owner = (ith + turn) % nth
            first, last = share(chunks * heads, owner, nth)
            done = -1
            while True:
                done = claim(param(args, CLAIMS), owner, last - first, nth) if is_claimed else done + 1
                if done >= last - first:
                    break
                first_row = (first + done) % chunks * item_rows
                head = (first + done) // chunks
                item(args, base, min(item_rows, all_rows - first_row), first_row, head % kv_heads, head // kv_heads)

    return attention


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


def _make_fetch_row(element_types: str) -> Any:
    """Return `fetch(source, n)`, which brings a row closer that will be needed soon."""
    form = FORMATS.get(element_types)
    nbytes, n_elements = (form.block_nbytes, form.block_size) if form else (ELEMENT_NBYTES.get(element_types, 1), 1)

    @helper
    def fetch_row(source, n):
        for line in range(0, n // n_elements * nbytes, CACHE_LINE):
            prefetch(source + line)

    return fetch_row


def _make_ends(layer: Layer) -> tuple[Any, Any]:
    """Return what begins an item (queries and masks in, sums at zero) and what ends it (the result out)."""
    F32, lanes, exp = layer.F32, layer.lanes, layer.exp

    @helper
    def start_row(args, base, row, token, head, stream):
        mask, slope = address(args, 4), _F32(1.0)
        if mask != 0:
            mask = row_address(args, 4, token, head % extent(args, 4, 2), stream % extent(args, 4, 3))
            slope = load_at(_F32, param(args, SLOPES), head)
        store_at(_I64, region(args, base, _MASKS), row, mask)
        store_at(_F32, region(args, base, _SLOPES), row, slope)
        store_at(_F32, region(args, base, _LARGEST), row, _HIDDEN)
        store_at(_F32, region(args, base, _SUM), row, 0.0)
        store_at(_F32, region(args, base, _FACTOR), row, 1.0)

    @helper
    def load_queries(args, base, n_rows, first_row, kv_head, stream):
        n, step, group = extent(args, 1, 0), stride(args, 1, 0), extent(args, 1, 2) // extent(args, 2, 2)
        softcap, factor = param_float(args, SOFTCAP), param_float(args, SCALE)
        if softcap != 0:
            factor /= softcap
        width = (extent(args, 3, 0) + lanes - 1) // lanes * lanes
        queries, result = region(args, base, _QUERIES), region(args, base, _RESULT)
        for row in range((n_rows + UNIT_COLUMNS - 1) // UNIT_COLUMNS * UNIT_COLUMNS):
            place = queries + row // UNIT_COLUMNS * UNIT_COLUMNS * 4 * n + 4 * (row % UNIT_COLUMNS)
            of_all = first_row + (row if row < n_rows else 0)
            token, head = of_all // group, kv_head * group + of_all % group
            source = row_address(args, 1, token, head, stream)
            for i in range(n):
                store(place + 4 * UNIT_COLUMNS * i, _F32(load(_F32, source + i * step) * factor))
            start_row(args, base, row, token, head, stream)
            for i in range(0, width, lanes):
                store(result + 4 * (row * width + i), zero(F32))

    @helper
    def share_with_sink(args, total, largest, head):
        """What makes weighted sums a mean, where a head's sink is one score more, of value 0."""
        if total == 0:
            return _F32(0.0)
        sink = load(_F32, param(args, SINKS) + head * param(args, SINK_STEP))
        peak = max(largest, sink)
        kept = extract(exp(splat(F32, largest - peak)), 0)
        return kept / (total * kept + extract(exp(splat(F32, sink - peak)), 0))

    @helper
    def store_result(args, base, n_rows, first_row, kv_head, stream):
        n, group = extent(args, 3, 0), extent(args, 1, 2) // extent(args, 2, 2)
        width = (n + lanes - 1) // lanes * lanes
        for row in range(n_rows):
            token, head = (first_row + row) // group, kv_head * group + (first_row + row) % group
            total = load_at(_F32, region(args, base, _SUM), row)
            inverse = _F32(1.0) / total if total != 0 else _F32(0.0)
            if param(args, SINKS) != 0:
                inverse = share_with_sink(args, total, load_at(_F32, region(args, base, _LARGEST), row), head)
            out = row_address(args, 0, head, token, stream)
            source = region(args, base, _RESULT) + 4 * row * width
            whole = n // lanes * lanes
            for i in range(0, whole, lanes):
                store(out + 4 * i, load(F32, source + 4 * i) * splat(F32, inverse))
            for i in range(whole, n):
                store(out + 4 * i, load(_F32, source + 4 * i) * inverse)

    return load_queries, store_result


def _make_score_block(layer: Layer, decode: Any, fetch_row: Any) -> Any:
    """Return `score(…, source, ahead, count)`: q · k of all rows and a block's positions.

    Vectors of positions that no row sees are skipped. Rows at `ahead`, the values, are brought closer meanwhile.
    """
    F32, lanes = layer.F32, layer.lanes
    transpose = transpose_square(layer.F32)
    narrow, middle, wide = (_score_strip(layer, width) for width in (4, 8, 12))

    @helper
    def score_tile(args, base, tile, n_rows, n, at):
        queries = region(args, base, _QUERIES) + 4 * n * tile
        panel, scores = region(args, base, _PANEL), region(args, base, _SCORES) + tile * _ROW_NBYTES + 4 * at
        if n_rows > 8:
            wide(panel, queries, n, scores)
        elif n_rows > 4:
            middle(panel, queries, n, scores)
        else:
            narrow(panel, queries, n, scores)

    @helper
    def score_block(args, base, n_rows, source, ahead, count):
        n, source_step = extent(args, 2, 0), stride(args, 2, 1)
        row_nbytes = (n + lanes - 1) // lanes * lanes * 4
        keys, panel, seen = region(args, base, _KEYS), region(args, base, _PANEL), region(args, base, _SEEN)
        for at in range(0, count, lanes):
            if hmax(load(F32, seen + 4 * at)) == _HIDDEN:
                continue
            for i in range(lanes):
                if load_at(_F32, seen, at + i) > _HIDDEN:
                    fetch_row(ahead + (at + i) * stride(args, 3, 1), extent(args, 3, 0))
                    decode(args, source + (at + i) * source_step, keys + i * row_nbytes, n)
            for i in range(0, n, lanes):
                transpose(keys + 4 * i, row_nbytes, panel + 4 * lanes * i)
            for tile in range(0, n_rows, TILE_ROWS):
                score_tile(args, base, tile, n_rows - tile, n, at)

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


def _make_soften(layer: Layer, mask_vector: Any) -> Any:
    """Return `soften(…, start, count)`: a block's scores become weights; each row's largest, sum and factor follow."""
    F32, lanes, exp, tanh = layer.F32, layer.lanes, layer.exp, layer.tanh

    @helper
    def add_bias(args, value, added):
        softcap = param_float(args, SOFTCAP)
        if softcap != 0:
            value = tanh(value) * splat(F32, softcap)
        return select(added == splat(F32, _HIDDEN), added, value + added)

    @helper
    def add_mask(args, base, row, start, count):
        n_kv, code, edge = extent(args, 2, 1), element_code(args, 4), region(args, base, _EDGE)
        mask = load_at(_I64, region(args, base, _MASKS), row)
        slope = splat(F32, load_at(_F32, region(args, base, _SLOPES), row))
        scores = region(args, base, _SCORES) + row * _ROW_NBYTES
        before = load_at(_F32, region(args, base, _LARGEST), row)
        top = splat(F32, before)
        for at in range(0, count, lanes):
            bias = mask_vector(mask, start + at, n_kv, code, edge) * slope
            value = add_bias(args, load(F32, scores + 4 * at), bias)
            store(scores + 4 * at, value)
            top = maximum(value, top)
        largest = hmax(top)
        store_at(_F32, region(args, base, _LARGEST), row, largest)
        store_at(_F32, region(args, base, _FACTOR), row, _F32(0.0) if largest == _HIDDEN else before - largest)

    @helper
    def weigh(args, base, row, count):
        scores = region(args, base, _SCORES) + row * _ROW_NBYTES
        largest, total = load_at(_F32, region(args, base, _LARGEST), row), zero(F32)
        for at in range(0, count, lanes):
            weight = zero(F32)
            if largest != _HIDDEN:
                weight = exp(load(F32, scores + 4 * at) - splat(F32, largest))
            store(scores + 4 * at, weight)
            total = total + weight
        sums, factor = region(args, base, _SUM), load_at(_F32, region(args, base, _FACTOR), row)
        store_at(_F32, sums, row, load_at(_F32, sums, row) * factor + hsum(total))

    @helper
    def soften(args, base, n_rows, start, count):
        for row in range(n_rows):
            add_mask(args, base, row, start, count)
        factors = region(args, base, _FACTOR)
        for row in range(0, n_rows, lanes):
            store(factors + 4 * row, exp(load(F32, factors + 4 * row)))
        for row in range(n_rows):
            weigh(args, base, row, count)

    return soften
