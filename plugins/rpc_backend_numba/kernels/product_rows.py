"""Matrix products one weight row at a time: for few columns of activations.

Belongs here: row times column. Must not be here: many columns (`product_tiles`), or the split over threads
(`product`).

`rows_<format>(weights, row_stride, n_rows, n_groups, inputs, input_stride, n_columns, out, out_stride)`: all
addresses and strides in bytes; `out` has one float32 per row and `out_stride` between columns. For float weights
`n_groups` counts elements and inputs are float32; else each column of inputs lies by itself (`formats`).
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.formats import (
    FORMATS,
    GROUP,
    INPUT_NBYTES,
    INPUT_SCALE,
    INPUT_SCALED_SUM,
    INPUT_SUMS_OF_HALVES,
    Format,
    zero_point_of_inputs,
)
from rpc_backend_numba.kernels.convert import ELEMENT_NBYTES, make_element_load, make_vector_load
from rpc_backend_numba.kernels.unpack import make_minimums, make_unpack
from rpc_backend_numba.simd import (
    add_pairs,
    convert,
    extract,
    fma,
    helper,
    high_half,
    hsum,
    load,
    low_half,
    place,
    splat,
    store,
    vector,
    zero,
)
from rpc_backend_numba.simd.layer import Layer

_F32, _I32, _I16 = types.float32, types.int32, types.int16
_F32X4, _I32X8 = vector(types.float32, 4), vector(types.int32, 8)
_I8X32 = vector(types.int8, 32)


def _make_row(layer: Layer, format_name: str) -> Any:
    """Return `row(block, j, start, inputs)`: one group of one row times one column.

    It gives the products as eight int32 (the first four belong to the first half of the group), two scales, and the
    minimum of the first half.
    """
    unpack, dot4 = make_unpack(layer, format_name), layer.dot4_up_to(FORMATS[format_name].largest)

    @helper
    def row(block, j, start, inputs):
        q, d0, d1, m0, _ = unpack(block, j)
        return dot4(start, q, inputs), d0, d1, m0

    return row


@helper
def _four(a, b, c, d):
    return place(place(place(splat(_F32X4, a), b, 1), c, 2), d, 3)


def _make_start(form: Format) -> Any:
    """Return `start(inputs)`: minus the zero point times the sums of a group, where `row` begins to add."""
    one_span = form.scale_span == GROUP
    if not form.zero_point:

        @helper
        def start_at_zero(inputs):
            return zero(_I32X8)

        return start_at_zero
    (first, shift), (second, _) = (zero_point_of_inputs(form, span) for span in (0, 1))
    left, right = max(shift, 0), max(-shift, 0)

    @helper
    def start(inputs):
        sums = place(zero(_I32X8), load(_I32, inputs + first), 0)
        if not one_span:
            sums = place(sums, load(_I32, inputs + second), 4)
        return (sums << splat(_I32X8, left)) >> splat(_I32X8, right)

    return start


def _make_four_rows(layer: Layer, format_name: str) -> Any:
    """Return `four_rows(a, b, c, d, j, source)`: one group of four rows times one column, a lane per row.

    It gives the products of both halves as floats, both scales and the minimum.
    """
    row, start_of = _make_row(layer, format_name), _make_start(FORMATS[format_name])

    @helper
    def four_rows(a, b, c, d, j, source):
        start, inputs = start_of(source), load(_I8X32, source)
        dot_a, a0, a1, am = row(a, j, start, inputs)
        dot_b, b0, b1, bm = row(b, j, start, inputs)
        dot_c, c0, c1, cm = row(c, j, start, inputs)
        dot_d, d0, d1, dm = row(d, j, start, inputs)
        sums = add_pairs(add_pairs(dot_a, dot_b), add_pairs(dot_c, dot_d))
        return low_half(sums), high_half(sums), _four(a0, b0, c0, d0), _four(a1, b1, c1, d1), _four(am, bm, cm, dm)

    return four_rows


def _make_block(layer: Layer, format_name: str) -> Any:
    """Return `block(total, a, b, c, d, source)`: one block of four rows times one column, a lane per row.

    The additions to a lane are those that `simd.tiles` makes for a row, in the same order: a result does not depend
    on how many columns are computed at once.
    """
    form, four_rows = FORMATS[format_name], _make_four_rows(layer, format_name)
    if form.scaled_by_block:
        return _make_scaled_block(layer, form, four_rows)
    has_minimum = form.has_minimum

    @helper
    def block(total, a, b, c, d, source):
        first, second, scales, _, minimums = four_rows(a, b, c, d, 0, source)
        scale = splat(_F32X4, load(_F32, source + INPUT_SCALE))
        total = fma(convert(_F32, first + second) * scale, scales, total)
        if has_minimum:
            total = fma(minimums, splat(_F32X4, load(_F32, source + INPUT_SCALED_SUM)), total)
        return total

    return block


def _make_scaled_block(layer: Layer, form: Format, four_rows: Any) -> Any:
    """Return `block` where activations have one scale per block."""
    add_minimums, one_span, groups = _make_add_minimums(layer, form), form.scale_span == GROUP, form.groups

    @helper
    def block(total, a, b, c, d, source):
        sums = zero(_F32X4)
        for j in range(groups):
            first, second, scales, last_scales, _ = four_rows(a, b, c, d, j, source + j * INPUT_NBYTES)
            if one_span:
                sums = fma(convert(_F32, first + second), scales, sums)
            else:
                sums = fma(convert(_F32, first), scales, sums)
                sums = fma(convert(_F32, second), last_scales, sums)
        sums = add_minimums(sums, a, b, c, d, source)
        return fma(sums, splat(_F32X4, load(_F32, source + INPUT_SCALE)), total)

    return block


def _make_add_minimums(layer: Layer, form: Format) -> Any:
    """Return `add(sums, a, b, c, d, source)`: whole numbers first, exactly, as `simd.tiles.tile_end_block` does."""
    if not form.has_minimum:

        @helper
        def add_nothing(sums, a, b, c, d, source):
            return sums

        return add_nothing
    minimums_of, factor_of = make_minimums(layer, form.name)
    groups = form.groups

    @helper
    def add(sums, a, b, c, d, source):
        total = zero(_F32X4)
        for j in range(groups):
            (a0, a1), (b0, b1) = minimums_of(a, j), minimums_of(b, j)
            (c0, c1), (d0, d1) = minimums_of(c, j), minimums_of(d, j)
            at = source + j * INPUT_NBYTES + INPUT_SUMS_OF_HALVES
            total = fma(_four(a0, b0, c0, d0), splat(_F32X4, _F32(load(_I16, at))), total)
            total = fma(_four(a1, b1, c1, d1), splat(_F32X4, _F32(load(_I16, at + 2))), total)
        return fma(total, _four(factor_of(a), factor_of(b), factor_of(c), factor_of(d)), sums)

    return add


def make_rows(layer: Layer, format_name: str) -> Any:
    """Return the kernel `rows` of a quantised format: four rows at a time."""
    block = _make_block(layer, format_name)
    form = FORMATS[format_name]
    block_nbytes, groups = form.block_nbytes, form.groups

    @helper
    def dots(a, b, c, d, n_blocks, source):
        total = zero(_F32X4)
        for _ in range(n_blocks):
            total = block(total, a, b, c, d, source)
            source += groups * INPUT_NBYTES
            a += block_nbytes
            b += block_nbytes
            c += block_nbytes
            d += block_nbytes
        return total

    def rows(weights, row_stride, n_rows, n_groups, inputs, input_stride, n_columns, out, out_stride):
        n_blocks = n_groups // groups
        for row in range(0, n_rows, 4):
            last = n_rows - 1 - row
            a = weights + row * row_stride
            b, c, d = a + min(1, last) * row_stride, a + min(2, last) * row_stride, a + min(3, last) * row_stride
            for column in range(n_columns):
                totals = dots(a, b, c, d, n_blocks, inputs + column * input_stride)
                target = out + column * out_stride + 4 * row
                if last >= 3:
                    store(target, totals)
                else:
                    for lane in range(last + 1):
                        store(target + 4 * lane, extract(totals, lane))

    return rows


def make_float_rows(layer: Layer, type_name: str) -> Any:
    """Return the kernel `rows` of F32, F16 or BF16 weights."""
    F32, lanes = layer.F32, layer.lanes
    load_vector, load_element = make_vector_load(layer, type_name), make_element_load(layer, type_name)
    nbytes = ELEMENT_NBYTES[type_name]

    @helper
    def dot(row, source, n):
        a, b, c, d = zero(F32), zero(F32), zero(F32), zero(F32)
        i = 0
        while i + 4 * lanes <= n:
            w, x = row + nbytes * i, source + 4 * i
            a = fma(load_vector(w), load(F32, x), a)
            b = fma(load_vector(w + nbytes * lanes), load(F32, x + 4 * lanes), b)
            c = fma(load_vector(w + 2 * nbytes * lanes), load(F32, x + 8 * lanes), c)
            d = fma(load_vector(w + 3 * nbytes * lanes), load(F32, x + 12 * lanes), d)
            i += 4 * lanes
        while i + lanes <= n:
            a = fma(load_vector(row + nbytes * i), load(F32, source + 4 * i), a)
            i += lanes
        total = hsum((a + b) + (c + d))
        while i < n:
            total += load_element(row + nbytes * i) * load(_F32, source + 4 * i)
            i += 1
        return total

    def rows(weights, row_stride, n_rows, n, inputs, input_stride, n_columns, out, out_stride):
        for row in range(n_rows):
            for column in range(n_columns):
                total = dot(weights + row * row_stride, inputs + column * input_stride, n)
                store(out + column * out_stride + 4 * row, total)

    return rows
