"""Activations made ready for matrix products, once for all products that read them.

Belongs here: the layouts of inputs. Must not be here: products.

Quantised layouts (see `formats`) hold one scale per 32 or per 256; float layouts hold float32. Columns lie apart, or
some together as a unit, its missing columns filled with zeros.

Parameters: 0 address of the result, 1 bytes between columns or units, 2 bytes between matrices.
Tensor 1 is the source [k, columns, ne2, ne3], of any strides; each kernel is made for its element type, F32, F16 or
BF16.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.formats import (
    BLOCK,
    GROUP,
    INPUT_MINUS_8_SUM,
    INPUT_MINUS_32_SUMS,
    INPUT_MINUS_128_SUM,
    INPUT_NBYTES,
    INPUT_SCALE,
    INPUT_SCALED_SUM,
    INPUT_SUMS_OF_HALVES,
    INPUT_SUMS_OF_TWO,
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

_F32, _I32, _I16, _I8 = types.float32, types.int32, types.int16, types.int8
_F32X16, _I32X16, _I32X8 = vector(types.float32, 16), vector(types.int32, 16), vector(types.int32, 8)
_U8X32 = vector(types.uint8, 32)


def _make_quantize(layer: Layer, type_name: str) -> tuple[Any, Any]:
    """Return `range_of(source, step, n)` and `quantize(source, step, inverse)`.

    The first gives the scale of n elements and its inverse, the second 32 elements as bytes and the sums of both
    halves.
    """
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
    def range_of(source, step, n):
        bits = zero(_I32X16)
        for i in range(0, n, 16):
            bits = maximum(bits, bitcast(_I32X16, vabs(load16(source + i * step, step))))  # in the order of numbers
        largest = bits_f32(hmax(bits))
        inverse = _F32(127.0) / largest if largest > 0 else _F32(0.0)
        return largest / _F32(127.0), inverse

    @helper
    def quantize(source, step, inverse):
        a, b = load16(source, step), load16(source + 16 * step, step)
        q = concat(whole(a, inverse), whole(b, inverse))
        sums = dot4(zero(_I32X8), splat(_U8X32, 1), q)
        sums = add_pairs(sums, sums)
        sums = add_pairs(sums, sums)
        return q, extract(sums, 0), extract(sums, 4)

    return range_of, quantize


@helper
def _column_of(column, args):
    """Address of a column of the source, by its number through all matrices, and matrix and place in it."""
    n1, n2 = extent(args, 1, 1), extent(args, 1, 2)
    matrix, inner = column // n1, column % n1
    return row_address(args, 1, inner, matrix % n2, matrix // n2), matrix, inner


def _make_put(layer: Layer, type_name: str) -> Any:
    """Return `put(target, source, step, cell_step)`: 32 elements with a scale of their own."""
    range_of, quantize = _make_quantize(layer, type_name)

    @helper
    def put(target, source, step, cell_step):
        scale, inverse = range_of(source, step, GROUP)
        q, sum_a, sum_b = quantize(source, step, inverse)
        store(target, q)
        both = sum_a + sum_b
        store(target + INPUT_MINUS_8_SUM, _I32(-8 * both))
        store(target + INPUT_MINUS_32_SUMS, _I32(-32 * sum_a))
        store(target + INPUT_MINUS_32_SUMS + 4, _I32(-32 * sum_b))
        store(target + INPUT_MINUS_128_SUM, _I32(-128 * both))
        store(target + INPUT_SCALE, scale)
        store(target + INPUT_SCALED_SUM, scale * _F32(both))

    return put


def _make_put_block(layer: Layer, type_name: str) -> Any:
    """Return `put(target, source, step, cell_step)`: 256 elements with one scale, in cells that lie so far apart."""
    range_of, quantize = _make_quantize(layer, type_name)

    @helper
    def put(target, source, step, cell_step):
        scale, inverse = range_of(source, step, BLOCK)
        before = _I32(0)
        for group in range(BLOCK // GROUP):
            cell = target + group * cell_step
            q, sum_a, sum_b = quantize(source + group * GROUP * step, step, inverse)
            store(cell, q)
            both = sum_a + sum_b
            if group % 2 == 0:
                before = _I32(both)
            else:
                store(cell - cell_step + INPUT_SUMS_OF_TWO, _I16(before))
                store(cell - cell_step + INPUT_SUMS_OF_TWO + 2, _I16(both))
            store(cell + INPUT_MINUS_32_SUMS, _I32(-32 * sum_a))
            store(cell + INPUT_MINUS_32_SUMS + 4, _I32(-32 * sum_b))
            store(cell + INPUT_MINUS_128_SUM, _I32(-128 * both))
            store(cell + INPUT_SCALE, scale)
            store(cell + INPUT_SUMS_OF_HALVES, _I16(sum_a))
            store(cell + INPUT_SUMS_OF_HALVES + 2, _I16(sum_b))

    return put


@helper
def _clear(target):
    for at in range(0, INPUT_NBYTES, 32):
        store(target + at, zero(_U8X32))


def make_inputs(layer: Layer, type_name: str) -> Any:
    """Return the kernel of the layout with a scale per 32; parameter 3 is how many columns lie together."""
    return _make_quantized_inputs(GROUP, _make_put(layer, type_name))


def make_block_inputs(layer: Layer, type_name: str) -> Any:
    """Return the kernel of the layout with a scale per 256; parameter 3 is how many columns lie together."""
    return _make_quantized_inputs(BLOCK, _make_put_block(layer, type_name))


def _make_quantized_inputs(size: int, put: Any) -> Any:
    """Return the kernel that threads share in pieces of `size` elements, which `put` makes ready."""
    cells = size // GROUP

    @helper
    def fill(args, column, columns, first, last):
        """Pieces [first, last) of a column, numbered through the padded columns of all matrices."""
        width, n2 = param(args, 3), extent(args, 1, 2)
        matrix, inner = column // columns, column % columns
        target = param(args, 0) + matrix * param(args, 2) + inner // width * param(args, 1)
        target += inner % width * INPUT_NBYTES
        step = stride(args, 1, 0)
        source = row_address(args, 1, inner, matrix % n2, matrix // n2)
        for piece in range(first, last):
            place = target + piece * cells * width * INPUT_NBYTES
            if inner < extent(args, 1, 1):
                put(place, source + piece * size * step, step, width * INPUT_NBYTES)
            else:
                for cell in range(cells):
                    _clear(place + cell * width * INPUT_NBYTES)

    def inputs(args, ith, nth):
        pieces, width = extent(args, 1, 0) // size, param(args, 3)
        columns = (extent(args, 1, 1) + width - 1) // width * width
        first, last = share(pieces * columns * extent(args, 1, 2) * extent(args, 1, 3), ith, nth)
        while first < last:
            column, piece = first // pieces, first % pieces
            taken = min(pieces - piece, last - first)
            fill(args, column, columns, piece, piece + taken)
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
