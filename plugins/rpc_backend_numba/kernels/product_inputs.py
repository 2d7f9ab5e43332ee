"""Activations made ready for matrix products, once for all products that read them.

Belongs here: the layouts of inputs. Must not be here: products.

The quantised layout (see `formats`) holds one scale per 32; float layouts hold float32. Columns lie apart, or some
together as a unit, its missing columns filled with zeros.

Parameters: 0 address of the result, 1 bytes between columns or units, 2 bytes between matrices.
Tensor 1 is the source [k, columns, ne2, ne3], of any strides; each kernel is made for its element type, F32, F16 or
BF16.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.formats import (
    GROUP,
    INPUT_MINUS_8_SUM,
    INPUT_MINUS_32_SUMS,
    INPUT_MINUS_128_SUM,
    INPUT_NBYTES,
    INPUT_SCALE,
    INPUT_SCALED_SUMS,
    UNIT_COLUMNS,
)
from rpc_backend_numba.kernels.access import extent, param, row_address, share, stride
from rpc_backend_numba.kernels.convert import ELEMENT_NBYTES, make_element_load, make_vector_load
from rpc_backend_numba.simd import (
    add_pairs,
    bitcast,
    bits_f32,
    concat,
    convert,
    extract,
    helper,
    hmax,
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

_F32, _I32, _I8 = types.float32, types.int32, types.int8
_F32X16, _I32X16, _I32X8 = vector(types.float32, 16), vector(types.int32, 16), vector(types.int32, 8)
_U8X32 = vector(types.uint8, 32)


def _make_quantize(layer: Layer, type_name: str) -> Any:
    """Return `quantize(source, step)`: 32 elements as bytes, their scale, the sums of both halves."""
    load_vector, dot4 = make_vector_load(layer.of_width(16), type_name), layer.dot4_up_to(1)
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
    def whole(values, factor):
        return convert(_I8, convert(_I32, round_even(values * splat(_F32X16, factor))))

    @helper
    def quantize(source, step):
        a, b = load16(source, step), load16(source + 16 * step, step)
        bits = maximum(bitcast(_I32X16, vabs(a)), bitcast(_I32X16, vabs(b)))  # in the same order as the numbers
        largest = bits_f32(hmax(bits))
        scale = largest / _F32(127.0)
        inverse = _F32(127.0) / largest if largest > 0 else _F32(0.0)
        q = concat(whole(a, inverse), whole(b, inverse))
        sums = dot4(zero(_I32X8), splat(_U8X32, 1), q)
        sums = add_pairs(sums, sums)
        sums = add_pairs(sums, sums)
        return q, scale, extract(sums, 0), extract(sums, 4)

    return quantize


@helper
def _column_of(column, args):
    """Address of a column of the source, by its number through all matrices, and matrix and place in it."""
    n1, n2 = extent(args, 1, 1), extent(args, 1, 2)
    matrix, inner = column // n1, column % n1
    return row_address(args, 1, inner, matrix % n2, matrix // n2), matrix, inner


def make_inputs(layer: Layer, type_name: str) -> Any:
    """Return the kernel of the quantised layout; parameter 3 is how many columns lie together."""
    quantize = _make_quantize(layer, type_name)

    @helper
    def put(target, source, step):
        q, scale, sum_a, sum_b = quantize(source, step)
        store(target, q)
        both = sum_a + sum_b
        store(target + INPUT_MINUS_8_SUM, _I32(-8 * both))
        store(target + INPUT_MINUS_32_SUMS, _I32(-32 * sum_a))
        store(target + INPUT_MINUS_32_SUMS + 4, _I32(-32 * sum_b))
        store(target + INPUT_MINUS_128_SUM, _I32(-128 * both))
        scaled_a, scaled_b = scale * _F32(sum_a), scale * _F32(sum_b)
        store(target + INPUT_SCALE, scale)
        store(target + INPUT_SCALED_SUMS, scaled_a + scaled_b)
        store(target + INPUT_SCALED_SUMS + 4, scaled_a)
        store(target + INPUT_SCALED_SUMS + 8, scaled_b)

    @helper
    def clear(target):
        for at in range(0, INPUT_NBYTES, 32):
            store(target + at, zero(_U8X32))

    @helper
    def fill(args, column, columns, first, last):
        """Groups [first, last) of a column, numbered through the padded columns of all matrices."""
        width, n2 = param(args, 3), extent(args, 1, 2)
        matrix, inner = column // columns, column % columns
        target = param(args, 0) + matrix * param(args, 2) + inner // width * param(args, 1)
        target += inner % width * INPUT_NBYTES
        step = stride(args, 1, 0)
        source = row_address(args, 1, inner, matrix % n2, matrix // n2)
        for group in range(first, last):
            place = target + group * width * INPUT_NBYTES
            if inner < extent(args, 1, 1):
                put(place, source + group * GROUP * step, step)
            else:
                clear(place)

    def inputs(args, ith, nth):
        n_groups, width = extent(args, 1, 0) // GROUP, param(args, 3)
        columns = (extent(args, 1, 1) + width - 1) // width * width
        first, last = share(n_groups * columns * extent(args, 1, 2) * extent(args, 1, 3), ith, nth)
        while first < last:
            column, group = first // n_groups, first % n_groups
            taken = min(n_groups - group, last - first)
            fill(args, column, columns, group, group + taken)
            first += taken

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
