"""Weights unpacked into panels: as many rows as a vector has lanes, their elements interleaved.

Belongs here: filling a panel from rows in their original layout. Must not be here: products over panels
(`product_tiles`).

`panel_<format>(weights, row_stride, n_rows, n_groups, panel, spare)`: rows from `n_rows` on become zeros; `spare`
holds as many vectors as a vector has lanes. The layout of quantised panels is that of `formats.panel_group_nbytes`; a
float panel is float32 [element][row], and `n_groups` then counts elements.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.formats import FORMATS, GROUP, panel_group_nbytes
from rpc_backend_numba.kernels.convert import ELEMENT_NBYTES, make_element_load, make_vector_load
from rpc_backend_numba.kernels.unpack import make_unpack
from rpc_backend_numba.simd import (
    bitcast,
    extract,
    helper,
    high_half,
    hsum,
    low_half,
    splat,
    store,
    vector,
    zero,
)
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.simd.tiles import transpose_square

_F32, _I32 = types.float32, types.int32
_U8X32, _I8X32, _I32X8 = vector(types.uint8, 32), vector(types.int8, 32), vector(types.int32, 8)


def make_panel(layer: Layer, format_name: str) -> Any:
    """Return the kernel `panel` of a quantised format."""
    form = FORMATS[format_name]
    unpack, dot4, lanes = make_unpack(layer, format_name), layer.dot4, layer.lanes
    block_nbytes, groups, zero_point = form.block_nbytes, form.block_size // GROUP, form.zero_point
    has_minimum, spans = form.has_minimum, GROUP // form.scale_span
    span_nbytes = panel_group_nbytes(form.scale_span, has_minimum, lanes) // spans
    quads = 8 // spans
    meta = quads * 4 * lanes

    @helper
    def put_span(target, row, words, first_word, start, scale, minimum):
        """Weights of one scale span of one row, and the row's three numbers."""
        for quad in range(quads):
            store(target + 4 * lanes * quad + 4 * row, extract(words, first_word + quad))
        numbers = target + meta + 4 * row
        store(numbers, start)
        store(numbers + 4 * lanes, scale)
        if has_minimum:
            store(numbers + 8 * lanes, minimum)

    @helper
    def put(target, row, q, d0, d1, m0, m1):
        signed = bitcast(_I8X32, q - splat(_U8X32, zero_point))
        words = bitcast(_I32X8, signed)
        sums = dot4(zero(_I32X8), splat(_U8X32, 1), signed)
        low, high = hsum(low_half(sums)), hsum(high_half(sums))
        if spans == 1:
            put_span(target, row, words, 0, _I32(-128 * (low + high)), d0, m0)
        else:
            put_span(target, row, words, 0, _I32(-128 * low), d0, m0)
            put_span(target + span_nbytes, row, words, quads, _I32(-128 * high), d1, m1)

    def panel(weights, row_stride, n_rows, n_groups, target, spare):
        for row in range(lanes):
            block, place = weights + row * row_stride, target
            for _ in range(n_groups // groups):
                for j in range(groups):
                    if row < n_rows:
                        q, d0, d1, m0, m1 = unpack(block, j)
                        put(place, row, q, d0, d1, m0, m1)
                    else:
                        put(place, row, splat(_U8X32, zero_point), _F32(0), _F32(0), _F32(0), _F32(0))
                    place += span_nbytes * spans
                block += block_nbytes

    return panel


def make_float_panel(layer: Layer, type_name: str) -> Any:
    """Return the kernel `panel` of F32, F16 or BF16 weights."""
    F32, lanes, nbytes = layer.F32, layer.lanes, ELEMENT_NBYTES[type_name]
    load_element, load_vector = make_element_load(layer, type_name), make_vector_load(layer, type_name)
    transpose = transpose_square(F32)

    def panel(weights, row_stride, n_rows, n, target, spare):
        whole = n - n % lanes
        for row in range(n_rows, lanes):
            store(spare + 4 * lanes * row, zero(F32))
        for i in range(0, whole, lanes):
            for row in range(n_rows):
                store(spare + 4 * lanes * row, load_vector(weights + row * row_stride + nbytes * i))
            transpose(spare, 4 * lanes, target + 4 * lanes * i)
        for i in range(whole, n):
            for row in range(lanes):
                value = _F32(0.0)
                if row < n_rows:
                    value = load_element(weights + row * row_stride + nbytes * i)
                store(target + 4 * (lanes * i + row), value)

    return panel
