"""Matrix products over interleaved rows of weights.

Belongs here: the loop over columns and groups of one panel. Must not be here: filling panels (`product_panels`,
`interleave`), the register tile itself (`simd.tiles`), or the split over threads (`product`).

`tile_<variant>(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare)`: all addresses
and strides in bytes; inputs are in units of columns (`product_inputs`). Quantised panels are 16 interleaved rows of
their format, and `spare` holds `SPARE_NBYTES`, for at most `RESULT_COLUMNS` columns; for float panels (float32
[element][row], a row per lane) `n_groups` counts elements.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.formats import (
    FORMATS,
    GROUP,
    INPUT_NBYTES,
    NUMBERS_NBYTES,
    TILE_ROWS,
    UNIT_COLUMNS,
    UNPACKED_NBYTES,
    Format,
)
from rpc_backend_numba.kernels.tile_formats import CHUNKS, make_groups
from rpc_backend_numba.layout import CACHE_LINE
from rpc_backend_numba.simd import helper, load, prefetch, store, vector, zero
from rpc_backend_numba.simd.chunks import chunk_step
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.simd.tiles import (
    tile_end_block,
    tile_load,
    tile_step_float,
    tile_step_quantized,
    tile_store,
    tile_zero,
)

FLOAT_COLUMNS = (12, 8, 4)
"""Widths of tiles; a matrix is cut into the widest that fits, its last columns into one that covers them."""

_AHEAD_NBYTES = 12288
"""How far ahead tiles of many columns fetch weights: while they compute, the CPU fetches too little by itself.

A line from memory takes as long as a few kilobytes of computing; being early by more costs nothing.
"""

_FETCH_FROM = {"Q3_K": 1, "Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
"""The columns of a tile from which on it does so, 2 for other formats.

Where little is computed between reads in order, the CPU's own fetching is faster.
"""

_MANY_COLUMNS = 32
"""From so many columns on, it pays to unpack a long block once for all of them."""

_LINES_PER_GROUP = 3
"""Cache lines that 16 of many columns fetch with each group: three times 16 fetch the largest block that there is."""

_F32 = types.float32


def make_tile(layer: Layer, variant: str) -> Any:
    """Return the kernel `tile` of a quantised format or of `float`."""
    if variant in FORMATS:
        return _make_quantized_tile(layer, variant)
    wide, middle, narrow = (_make_float_strip(layer, width) for width in FLOAT_COLUMNS)

    def tile(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare):
        done = 0
        while done < n_columns:
            source, place = inputs + done // UNIT_COLUMNS * unit_stride, out + done * out_stride
            left = n_columns - done
            if left > 8:
                wide(panel, n_groups, source, unit_stride, left, n_rows, place, out_stride, spare)
                done += 12
            elif left > 4:
                middle(panel, n_groups, source, unit_stride, left, n_rows, place, out_stride, spare)
                done += 8
            else:
                narrow(panel, n_groups, source, unit_stride, left, n_rows, place, out_stride, spare)
                done += 4

    return tile


def _make_quantized_tile(layer: Layer, format_name: str) -> Any:
    """One or two columns lie each by itself, more in units of four."""
    one, two = (_make_strip(layer, format_name, width, 1) for width in (1, 2))
    if format_name in CHUNKS and layer.target.byte_dot == "vnni":  # others are held up by arithmetic, not by memory
        one = _make_chunk_strip(layer, format_name)
    if layer.lanes < TILE_ROWS:
        four = _make_strip(layer, format_name, 4, UNIT_COLUMNS)

        def narrow_tile(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare):
            if n_columns == 1:
                one(panel, n_groups, inputs, unit_stride, 1, n_rows, out, out_stride, spare)
            elif n_columns == 2:
                two(panel, n_groups, inputs, unit_stride, 2, n_rows, out, out_stride, spare)
            else:
                for done in range(0, n_columns, 4):
                    source, place = inputs + done // UNIT_COLUMNS * unit_stride, out + done * out_stride
                    four(panel, n_groups, source, unit_stride, n_columns - done, n_rows, place, out_stride, spare)

        return narrow_tile
    strips = (_make_strip(layer, format_name, width, UNIT_COLUMNS) for width in (4, 8, 12, 16))
    four, eight, twelve, sixteen = strips
    has_long_blocks = FORMATS[format_name].scaled_by_block
    many = _make_many(layer, format_name) if has_long_blocks else sixteen

    def tile(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare):
        if n_columns == 1:
            one(panel, n_groups, inputs, unit_stride, 1, n_rows, out, out_stride, spare)
            return
        if n_columns == 2:
            two(panel, n_groups, inputs, unit_stride, 2, n_rows, out, out_stride, spare)
            return
        if has_long_blocks and n_columns >= _MANY_COLUMNS:
            many(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare)
            return
        done = 0
        while done < n_columns:
            source, place = inputs + done // UNIT_COLUMNS * unit_stride, out + done * out_stride
            left = n_columns - done
            if left > 24 or 12 < left <= 16:
                sixteen(panel, n_groups, source, unit_stride, left, n_rows, place, out_stride, spare)
                done += 16
            elif left > 8:
                twelve(panel, n_groups, source, unit_stride, left, n_rows, place, out_stride, spare)
                done += 12
            elif left > 4:
                eight(panel, n_groups, source, unit_stride, left, n_rows, place, out_stride, spare)
                done += 8
            else:
                four(panel, n_groups, source, unit_stride, left, n_rows, place, out_stride, spare)
                done += 4

    return tile


def _make_strip(layer: Layer, format_name: str, width: int, unit_columns: int) -> Any:
    """Return the loop over all groups for one tile of `width` columns of quantised weights."""
    form, lanes = FORMATS[format_name], layer.lanes
    prepare, take = make_groups(layer, format_name)
    zero, (begin, end) = tile_zero(layer.F32, width), _make_block_ends(layer, form, width, unit_columns)
    step = tile_step_quantized(layer.F32, width, unit_columns, form, layer.target.byte_dot)
    put = _make_put(layer, width)
    groups, block_step, input_step = form.groups, TILE_ROWS * form.block_nbytes, unit_columns * INPUT_NBYTES
    group_step = block_step // groups
    fetched = group_step if width >= _FETCH_FROM.get(format_name, 2) else 0

    @helper
    def strip(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare):
        for first in range(0, TILE_ROWS, lanes):
            total = zero()
            words, halves, source = panel + 4 * first, panel + 2 * first, inputs
            for _ in range(n_groups // groups):
                prepare(words, halves, spare)
                sums, block = begin(total), source
                for j in range(groups):
                    for line in range(0, fetched, CACHE_LINE):
                        prefetch(words + _AHEAD_NBYTES + j * group_step + line)
                    sums = step(sums, take(words, halves, spare, j), source, unit_stride)
                    source += input_step
                total = end(total, sums, spare, block, unit_stride)
                words += block_step
                halves += block_step
            put(total, n_columns, n_rows - first, out + 4 * first, out_stride, spare)

    return strip


def _make_many(layer: Layer, format_name: str) -> Any:
    """Return the loop over blocks and, within a block, over columns: each block of long ones is unpacked once."""
    form, lanes, F32, U32 = FORMATS[format_name], layer.lanes, layer.F32, vector(types.uint32, layer.lanes)
    prepare, take = make_groups(layer, format_name)
    keep = tile_store(U32, GROUP // 4)
    four, eight, sixteen = (_make_part(layer, form, width) for width in (4, 8, 16))
    groups, block_step, line = form.groups, TILE_ROWS * form.block_nbytes, 4 * lanes
    input_step, unpacked_nbytes = groups * UNIT_COLUMNS * INPUT_NBYTES, groups * UNPACKED_NBYTES

    @helper
    def unpack(words, spare, weights):
        prepare(words, words, spare)
        for j in range(groups):
            quads, _, _, _ = take(words, words, spare, j)
            keep(quads, weights + j * UNPACKED_NBYTES, line, GROUP // 4)

    @helper
    def multiply(weights, spare, inputs, unit_stride, n_columns, sums, ahead):
        """Add the products of a block, and fetch the one that lies `ahead` little by little."""
        done = 0
        while done < n_columns:
            source, place = inputs + done // UNIT_COLUMNS * unit_stride, sums + done * line
            if n_columns - done > 12:
                sixteen(weights, spare, source, unit_stride, place, ahead)
                ahead += groups * _LINES_PER_GROUP * CACHE_LINE
                done += 16
            elif n_columns - done > 4:
                eight(weights, spare, source, unit_stride, place, ahead)
                done += 8
            else:
                four(weights, spare, source, unit_stride, place, ahead)
                done += 4

    @helper
    def many(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare):
        weights = spare + NUMBERS_NBYTES
        sums = weights + unpacked_nbytes
        for column in range((n_columns + 15) // 16 * 16):
            store(sums + column * line, zero(F32))
        for column in range(n_columns):
            prefetch(out + column * out_stride)  # columns lie in as many pages
        words, source = panel, inputs
        for _ in range(n_groups // groups):
            unpack(words, spare, weights)
            words += block_step
            multiply(weights, spare, source, unit_stride, n_columns, sums, words)
            source += input_step
        for column in range(n_columns):
            place, at = out + column * out_stride, sums + column * line
            if n_rows >= lanes:
                store(place, load(F32, at))
            else:
                for row in range(n_rows):
                    store(place + 4 * row, load(_F32, at + 4 * row))

    return many


def _make_part(layer: Layer, form: Format, width: int) -> Any:
    """Return `part(weights, spare, inputs, unit_stride, sums, ahead)`: add an unpacked block to some columns."""
    F32, line, how = layer.F32, 4 * layer.lanes, layer.target.byte_dot
    words, fetch = tile_load(vector(types.uint32, layer.lanes), GROUP // 4), tile_load(F32, width)
    start, put = tile_zero(F32, width), tile_store(F32, width)
    step = tile_step_quantized(F32, width, UNIT_COLUMNS, form, how)
    end = tile_end_block(F32, width, UNIT_COLUMNS, form, how)
    groups, spans, input_step = form.groups, GROUP // form.scale_span, UNIT_COLUMNS * INPUT_NBYTES

    @helper
    def part(weights, spare, inputs, unit_stride, sums, ahead):
        total = start()
        for j in range(groups):
            for i in range(_LINES_PER_GROUP):
                prefetch(ahead + (j * _LINES_PER_GROUP + i) * CACHE_LINE)
            at = spare + j * spans * line
            group = (words(weights + j * UNPACKED_NBYTES), load(F32, at), load(F32, at + (spans - 1) * line), zero(F32))
            total = step(total, group, inputs + j * input_step, unit_stride)
        put(end(fetch(sums), total, spare, inputs, unit_stride), sums, line, width)

    return part


def _make_block_ends(layer: Layer, form: Format, width: int, unit_columns: int) -> tuple[Any, Any]:
    """Return `begin(total)` and `end(total, sums, spare, inputs, unit_stride)`, what a block's groups are added to."""
    if form.scaled_by_block:
        zero = tile_zero(layer.F32, width)

        @helper
        def begin(total):
            return zero()

        return begin, tile_end_block(layer.F32, width, unit_columns, form, layer.target.byte_dot)

    @helper
    def begin_as_is(total):
        return total

    @helper
    def end_as_is(total, sums, spare, inputs, unit_stride):
        return sums

    return begin_as_is, end_as_is


def _make_chunk_strip(layer: Layer, format_name: str) -> Any:
    """Return the loop over all groups for one column, some groups at a time that share words."""
    form, lanes, chunk = FORMATS[format_name], layer.lanes, CHUNKS[format_name]
    prepare, _ = make_groups(layer, format_name)
    zero, step = tile_zero(layer.F32, 1), chunk_step(layer.F32, form, chunk, layer.target.byte_dot)
    begin, end = _make_block_ends(layer, form, 1, 1)
    put = _make_put(layer, 1)
    groups, block_step, together = form.groups, TILE_ROWS * form.block_nbytes, len(chunk.groups)
    first_word, chunk_nbytes = TILE_ROWS * chunk.first, TILE_ROWS * chunk.nbytes
    numbers_nbytes = 4 * lanes * GROUP // form.scale_span * together

    @helper
    def strip(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare):
        for first in range(0, TILE_ROWS, lanes):
            total = zero()
            words, halves, source = panel + 4 * first, panel + 2 * first, inputs
            for _ in range(n_groups // groups):
                prepare(words, halves, spare)
                sums, block = begin(total), source
                for i in range(groups // together):
                    sums = step(sums, words + first_word + i * chunk_nbytes, spare + i * numbers_nbytes, source)
                    source += together * INPUT_NBYTES
                total = end(total, sums, spare, block, 0)
                words += block_step
                halves += block_step
            put(total, n_columns, n_rows - first, out + 4 * first, out_stride, spare)

    return strip


def _make_float_strip(layer: Layer, width: int) -> Any:
    """Return the loop over all elements for one tile of `width` columns."""
    lanes = layer.lanes
    zero, step, put = tile_zero(layer.F32, width), tile_step_float(layer.F32, width), _make_put(layer, width)

    @helper
    def strip(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare):
        total = zero()
        for _ in range(n_groups):
            total = step(total, panel, inputs, unit_stride)
            panel += 4 * lanes
            inputs += 4 * UNIT_COLUMNS
        put(total, n_columns, n_rows, out, out_stride, spare)

    return strip


def _make_put(layer: Layer, width: int) -> Any:
    """Return `put(total, n_columns, n_rows, out, out_stride, spare)`: keep the columns and rows that there are."""
    lanes, whole = layer.lanes, tile_store(layer.F32, width)

    @helper
    def put(total, n_columns, n_rows, out, out_stride, spare):
        if n_rows >= lanes:
            whole(total, out, out_stride, n_columns)
            return
        whole(total, spare, 4 * lanes, width)
        for column in range(min(n_columns, width)):
            for row in range(n_rows):
                store(out + column * out_stride + 4 * row, load(_F32, spare + 4 * (column * lanes + row)))

    return put
