"""Activations made ready for matrix products, once for all products that read them.

Belongs here: the four layouts of inputs. Must not be here: products.

Quantised layouts (see `formats`) hold one scale per 32; float layouts hold float32. "row" layouts keep each column
apart, for few columns; "tile" layouts keep four columns together, the missing ones filled with zeros.

Parameters: 0 address of the result, 1 bytes between columns (row) or units of four (tile), 2 bytes between matrices.
Tensor 1 is the source [k, columns, ne2, ne3], of any strides; each kernel is made for its element type, F32, F16 or
BF16.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.formats import (
    GROUP,
    ROW_INPUT_NBYTES,
    ROW_INPUT_SCALES,
    ROW_INPUT_SUMS,
    TILE_INPUT_NBYTES,
    TILE_INPUT_SCALES,
    UNIT_COLUMNS,
    UNIT_NBYTES,
)
from rpc_backend_numba.kernels.access import extent, param, row_address, share, stride
from rpc_backend_numba.kernels.convert import ELEMENT_NBYTES, make_element_load, make_vector_load
from rpc_backend_numba.simd import (
    bitcast,
    convert,
    helper,
    hmax,
    hsum,
    maximum,
    place,
    round_even,
    splat,
    store,
    vabs,
    vector,
    zero,
)
from rpc_backend_numba.simd.layer import Layer

_F32, _I32, _I8, _U8 = types.float32, types.int32, types.int8, types.uint8
_F32X16, _I32X8 = vector(types.float32, 16), vector(types.int32, 8)
_U8X16 = vector(types.uint8, 16)


def _make_quantize(layer: Layer, type_name: str) -> Any:
    """Return `quantize(source, step)`: 32 elements as two vectors of bytes, their scale, the sums of both halves."""
    load_vector = make_vector_load(layer.of_width(16), type_name)
    load_element, nbytes = make_element_load(layer, type_name), ELEMENT_NBYTES[type_name]

    @helper
    def load16(source, step):
        if step == nbytes:
            return load_vector(source)
        values = zero(_F32X16)
        for i in range(16):
            values = place(values, load_element(source + i * step), i)
        return values

    @helper
    def quantize(source, step):
        a, b = load16(source, step), load16(source + 16 * step, step)
        largest = hmax(maximum(vabs(a), vabs(b)))
        scale = largest / _F32(127.0)
        inverse = _F32(127.0) / largest if largest > 0 else _F32(0.0)
        whole_a = convert(_I32, round_even(a * splat(_F32X16, inverse)))
        whole_b = convert(_I32, round_even(b * splat(_F32X16, inverse)))
        return convert(_I8, whole_a), convert(_I8, whole_b), scale, hsum(whole_a), hsum(whole_b)

    return quantize


@helper
def _store_scales(target, scale, sum_a, sum_b):
    scaled_a, scaled_b = scale * _F32(sum_a), scale * _F32(sum_b)
    store(target, scale)
    store(target + 4, scaled_a)
    store(target + 8, scaled_b)
    store(target + 12, scaled_a + scaled_b)


@helper
def _column_of(column, args):
    """Address of a column of the source, by its number through all matrices, and matrix and place in it."""
    n1, n2 = extent(args, 1, 1), extent(args, 1, 2)
    matrix, inner = column // n1, column % n1
    return row_address(args, 1, inner, matrix % n2, matrix // n2), matrix, inner


def make_inputs_row(layer: Layer, type_name: str) -> Any:
    """Return the kernel of the quantised row layout."""
    quantize = _make_quantize(layer, type_name)

    def inputs(args, ith, nth):
        n_groups = extent(args, 1, 0) // GROUP
        step = stride(args, 1, 0)
        first, last = share(n_groups * extent(args, 1, 1) * extent(args, 1, 2) * extent(args, 1, 3), ith, nth)
        for item in range(first, last):
            group = item % n_groups
            source, matrix, inner = _column_of(item // n_groups, args)
            target = param(args, 0) + matrix * param(args, 2) + inner * param(args, 1) + group * ROW_INPUT_NBYTES
            a, b, scale, sum_a, sum_b = quantize(source + group * GROUP * step, step)
            store(target, a)
            store(target + 16, b)
            sums = place(place(zero(_I32X8), -sum_a, 0), -sum_b, 4)
            store(target + ROW_INPUT_SUMS, sums)
            _store_scales(target + ROW_INPUT_SCALES, scale, sum_a, sum_b)

    return inputs


def make_inputs_tile(layer: Layer, type_name: str) -> Any:
    """Return the kernel of the quantised tile layout."""
    quantize = _make_quantize(layer, type_name)

    @helper
    def one(target, source, step, is_column):
        if is_column:
            a, b, scale, sum_a, sum_b = quantize(source, step)
            store(target, bitcast(_U8X16, a) ^ splat(_U8X16, 128))
            store(target + 16, bitcast(_U8X16, b) ^ splat(_U8X16, 128))
            _store_scales(target + TILE_INPUT_SCALES, scale, sum_a, sum_b)
        else:
            for at in range(0, TILE_INPUT_NBYTES, 16):
                store(target + at, zero(_U8X16))

    def inputs(args, ith, nth):
        n_groups, n_columns = extent(args, 1, 0) // GROUP, extent(args, 1, 1)
        step = stride(args, 1, 0)
        n2 = extent(args, 1, 2)
        n_units = (n_columns + UNIT_COLUMNS - 1) // UNIT_COLUMNS
        first, last = share(n_units * n2 * extent(args, 1, 3), ith, nth)
        for item in range(first, last):
            matrix, unit = item // n_units, item % n_units
            unit_target = param(args, 0) + matrix * param(args, 2) + unit * param(args, 1)
            for inner in range(UNIT_COLUMNS):
                column = unit * UNIT_COLUMNS + inner
                source = row_address(args, 1, column, matrix % n2, matrix // n2)
                for group in range(n_groups):
                    target = unit_target + group * UNIT_NBYTES + inner * TILE_INPUT_NBYTES
                    one(target, source + group * GROUP * step, step, column < n_columns)

    return inputs


def make_inputs_float_row(layer: Layer, type_name: str) -> Any:
    """Return the kernel that packs float columns."""
    load_element = make_element_load(layer, type_name)

    def inputs(args, ith, nth):
        n, step = extent(args, 1, 0), stride(args, 1, 0)
        first, last = share(extent(args, 1, 1) * extent(args, 1, 2) * extent(args, 1, 3), ith, nth)
        for column in range(first, last):
            source, matrix, inner = _column_of(column, args)
            target = param(args, 0) + matrix * param(args, 2) + inner * param(args, 1)
            for i in range(n):
                store(target + 4 * i, load_element(source + i * step))

    return inputs


def make_inputs_float_tile(layer: Layer, type_name: str) -> Any:
    """Return the kernel that packs float columns in units of four, element by element."""
    load_element = make_element_load(layer, type_name)

    def inputs(args, ith, nth):
        n, n_columns = extent(args, 1, 0), extent(args, 1, 1)
        step, n2 = stride(args, 1, 0), extent(args, 1, 2)
        n_units = (n_columns + UNIT_COLUMNS - 1) // UNIT_COLUMNS
        first, last = share(n_units * n2 * extent(args, 1, 3), ith, nth)
        for item in range(first, last):
            matrix, unit = item // n_units, item % n_units
            unit_target = param(args, 0) + matrix * param(args, 2) + unit * param(args, 1)
            for inner in range(UNIT_COLUMNS):
                column = unit * UNIT_COLUMNS + inner
                source = row_address(args, 1, column, matrix % n2, matrix // n2)
                for i in range(n):
                    value = _F32(0.0)
                    if column < n_columns:
                        value = load_element(source + i * step)
                    store(unit_target + 4 * (UNIT_COLUMNS * i + inner), value)

    return inputs
