"""Matrix products one weight row at a time: for few columns of activations.

Belongs here: row times column. Must not be here: many columns (`product_tiles`), or the split over threads
(`product`).

`rows_<format>(weights, row_stride, n_rows, n_groups, inputs, input_stride, n_columns, out, out_stride)`: all
addresses and strides in bytes; `out` has one float32 per row and `out_stride` between columns. For float weights
`n_groups` counts elements and inputs are float32.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.formats import FORMATS, GROUP, ROW_INPUT_NBYTES, ROW_INPUT_SCALES, ROW_INPUT_SUMS
from rpc_backend_numba.kernels.convert import ELEMENT_NBYTES, make_element_load, make_vector_load
from rpc_backend_numba.kernels.unpack import make_unpack
from rpc_backend_numba.simd import concat, convert, fma, helper, hsum, load, splat, store, vector, zero
from rpc_backend_numba.simd.layer import Layer

_F32 = types.float32
_F32X4, _F32X8, _I32X8 = vector(types.float32, 4), vector(types.float32, 8), vector(types.int32, 8)
_I8X32 = vector(types.int8, 32)


def _make_step(layer: Layer, format_name: str) -> Any:
    """Return `step(total, minimum, block, j, input)`: one group of one row times one column, added up."""
    form = FORMATS[format_name]
    unpack, dot4 = make_unpack(layer, format_name), layer.dot4
    zero_shift = form.zero_point.bit_length() - 1
    has_zero_point, has_minimum, one_scale = form.zero_point > 0, form.has_minimum, form.scale_span == GROUP

    @helper
    def step(total, minimum, block, j, source):
        q, d0, d1, m0, m1 = unpack(block, j)
        start = zero(_I32X8)
        if has_zero_point:
            start = load(_I32X8, source + ROW_INPUT_SUMS) << splat(_I32X8, zero_shift)
        products = convert(_F32, dot4(start, q, load(_I8X32, source)))
        scale = load(_F32, source + ROW_INPUT_SCALES)
        if one_scale:
            scales = splat(_F32X8, d0 * scale)
        else:
            scales = concat(splat(_F32X4, d0 * scale), splat(_F32X4, d1 * scale))
        if has_minimum:
            if one_scale:
                minimum += m0 * load(_F32, source + ROW_INPUT_SCALES + 12)
            else:
                minimum += m0 * load(_F32, source + ROW_INPUT_SCALES + 4)
                minimum += m1 * load(_F32, source + ROW_INPUT_SCALES + 8)
        return fma(products, scales, total), minimum

    return step


def make_rows(layer: Layer, format_name: str) -> Any:
    """Return the kernel `rows` of a quantised format."""
    step = _make_step(layer, format_name)
    form = FORMATS[format_name]
    block_nbytes, groups = form.block_nbytes, form.block_size // GROUP

    @helper
    def pair(first, second, n_blocks, source):
        """Two rows at once, so that their chains of additions overlap."""
        a, b = zero(_F32X8), zero(_F32X8)
        a_min, b_min = _F32(0.0), _F32(0.0)
        for _ in range(n_blocks):
            for j in range(groups):
                a, a_min = step(a, a_min, first, j, source)
                b, b_min = step(b, b_min, second, j, source)
                source += ROW_INPUT_NBYTES
            first += block_nbytes
            second += block_nbytes
        return hsum(a) + a_min, hsum(b) + b_min

    def rows(weights, row_stride, n_rows, n_groups, inputs, input_stride, n_columns, out, out_stride):
        n_blocks = n_groups // groups
        for row in range(0, n_rows, 2):
            first = weights + row * row_stride
            second = first + (row_stride if row + 1 < n_rows else 0)
            for column in range(n_columns):
                a, b = pair(first, second, n_blocks, inputs + column * input_stride)
                place = out + column * out_stride + 4 * row
                store(place, a)
                if row + 1 < n_rows:
                    store(place + 4, b)

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
