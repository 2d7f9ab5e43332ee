"""Matrix products over interleaved rows of weights.

Belongs here: the loop over columns and groups of one panel. Must not be here: filling panels (`product_panels`,
`interleave`), the register tile itself (`simd.tiles`), or the split over threads (`product`).

`tile_<variant>(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare)`: all addresses
and strides in bytes; inputs are in units of columns (`product_inputs`). Quantised panels are 16 interleaved rows of
their format, and `spare` holds `SPARE_NBYTES`; for float panels (float32 [element][row], a row per lane) `n_groups`
counts elements.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.formats import FORMATS, GROUP, INPUT_NBYTES, TILE_ROWS, UNIT_COLUMNS
from rpc_backend_numba.kernels.tile_formats import CHUNKS, FETCHED, make_groups
from rpc_backend_numba.layout import CACHE_LINE
from rpc_backend_numba.simd import helper, load, prefetch, store
from rpc_backend_numba.simd.chunks import chunk_step
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.simd.tiles import FEW_COLUMNS, tile_step_float, tile_step_quantized, tile_store, tile_zero

FLOAT_COLUMNS = (12, 8, 4)
"""Widths of tiles; a matrix is cut into the widest that fits, its last columns into one that covers them."""

_AHEAD_NBYTES = 4096
"""How far ahead tiles of many columns fetch weights: while they compute, the CPU stops where a page of memory ends.

Tiles of few columns do without, but for formats in `FETCHED`.
"""

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

    def tile(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare):
        if n_columns == 1:
            one(panel, n_groups, inputs, unit_stride, 1, n_rows, out, out_stride, spare)
            return
        if n_columns == 2:
            two(panel, n_groups, inputs, unit_stride, 2, n_rows, out, out_stride, spare)
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
    zero = tile_zero(layer.F32, width)
    step = tile_step_quantized(layer.F32, width, unit_columns, form, layer.target.byte_dot)
    put = _make_put(layer, width)
    groups, block_step, input_step = form.groups, TILE_ROWS * form.block_nbytes, unit_columns * INPUT_NBYTES
    group_step = block_step // groups
    fetched = group_step if width > FEW_COLUMNS or format_name in FETCHED else 0

    @helper
    def strip(panel, n_groups, inputs, unit_stride, n_columns, n_rows, out, out_stride, spare):
        for first in range(0, TILE_ROWS, lanes):
            total = zero()
            words, halves, source = panel + 4 * first, panel + 2 * first, inputs
            for _ in range(n_groups // groups):
                prepare(words, halves, spare)
                for j in range(groups):
                    for line in range(0, fetched, CACHE_LINE):
                        prefetch(words + _AHEAD_NBYTES + j * group_step + line)
                    total = step(total, take(words, halves, spare, j), source, unit_stride)
                    source += input_step
                words += block_step
                halves += block_step
            put(total, n_columns, n_rows - first, out + 4 * first, out_stride, spare)

    return strip


def _make_chunk_strip(layer: Layer, format_name: str) -> Any:
    """Return the loop over all groups for one column, some groups at a time that share words."""
    form, lanes, chunk = FORMATS[format_name], layer.lanes, CHUNKS[format_name]
    prepare, _ = make_groups(layer, format_name)
    zero, step = tile_zero(layer.F32, 1), chunk_step(layer.F32, form, chunk, layer.target.byte_dot)
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
                for i in range(groups // together):
                    total = step(total, words + first_word + i * chunk_nbytes, spare + i * numbers_nbytes, source)
                    source += together * INPUT_NBYTES
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
