"""Register tiles: one vector of results per column.

Belongs here: the inner steps of matrix products as single operations, so that their unrolled code is emitted
here and not typed line by line by numba. Must not be here: loops over memory.

A tile is a numba tuple of `n_columns` float32 vectors; lane i is row i of a panel.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from rpc_backend_numba.formats import (
    GROUP,
    INPUT_NBYTES,
    INPUT_SCALE,
    INPUT_SCALED_SUM,
    INPUT_SUMS_OF_HALVES,
    INPUT_SUMS_OF_TWO,
    UNIT_COLUMNS,
    Format,
    zero_point_of_inputs,
)
from rpc_backend_numba.intrinsics import intrinsic
from rpc_backend_numba.simd.arithmetic import broadcast, call_intrinsic, suffix
from rpc_backend_numba.simd.byte_dots import ByteDots, emit_dot2
from rpc_backend_numba.simd.memory import emit_load, emit_store
from rpc_backend_numba.simd.vectors import VectorType
from rpc_backend_numba.targets import ByteDot

FEW_COLUMNS = 2
"""A tile of so few columns has too few sums to hide the time of a dot product."""

SIDE_BY_SIDE = 4
"""Columns whose dot products are made in turns: one column's wait for each other."""

_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()


def _offset(builder: Any, address: Any, nbytes: int) -> Any:
    return builder.add(address, ir.Constant(_I64, nbytes)) if nbytes else address


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return call_intrinsic(builder, f"llvm.fmuladd.{suffix(a.type)}", a.type, [a, b, c])


def _unit_addresses(builder: Any, inputs: Any, unit_stride: Any, n_units: int) -> list[Any]:
    """The address of each unit of columns."""
    units = [inputs]
    for _ in range(1, n_units):
        units.append(builder.add(units[-1], unit_stride))
    return units


def tile_zero(kind: VectorType, n_columns: int) -> Any:
    """Return `zero()`: a tile of zeros."""
    tile = types.UniTuple(kind, n_columns)

    @intrinsic
    def zero(typing_context: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return cgutils.pack_array(builder, [ir.Constant(kind.llvm, None)] * n_columns)

        return tile(), emit

    return zero


def tile_store(kind: VectorType, n_columns: int) -> Any:
    """Return `store(tile, out, stride, n)`: write the first `n` columns, `stride` bytes apart."""
    tile = types.UniTuple(kind, n_columns)

    @intrinsic
    def store(typing_context: Any, values: Any, out: Any, stride: Any, n: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            place = args[1]
            for column, value in enumerate(cgutils.unpack_tuple(builder, args[0], n_columns)):
                with builder.if_then(builder.icmp_signed("<", ir.Constant(_I64, column), args[3])):
                    stored = builder.store(value, builder.inttoptr(place, kind.llvm.as_pointer()))
                    stored.align = 1
                place = builder.add(place, args[2])
            return context.get_dummy_value()

        return types.void(tile, types.intp, types.intp, types.intp), emit

    return store


def tile_load(kind: VectorType, n_columns: int) -> Any:
    """Return `load(address)`: columns that lie one after the other."""
    tile = types.UniTuple(kind, n_columns)

    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            places = [_offset(builder, args[0], 4 * kind.lanes * column) for column in range(n_columns)]
            return cgutils.pack_array(builder, [emit_load(builder, place, kind.llvm) for place in places])

        return tile(types.intp), emit

    return load


def tile_step_quantized(kind: VectorType, n_columns: int, unit_columns: int, form: Format, how: ByteDot) -> Any:
    """Return `step(tile, group, inputs, unit_stride)`: add the products of one group of `kernels.tile_formats`."""
    tile = types.UniTuple(kind, n_columns)
    emitter = QuantizedStep(kind.lanes, n_columns, unit_columns, form, how)

    @intrinsic
    def step(typing_context: Any, values: Any, group: Any, inputs: Any, unit_stride: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            totals = cgutils.unpack_tuple(builder, args[0], n_columns)
            words, *numbers = cgutils.unpack_tuple(builder, args[1], 4)
            quads = cgutils.unpack_tuple(builder, words, GROUP // 4)
            return cgutils.pack_array(builder, emitter.emit(builder, totals, quads, numbers, *args[2:]))

        return tile(tile, group, types.intp, types.intp), emit

    return step


def tile_end_block(kind: VectorType, n_columns: int, unit_columns: int, form: Format, how: ByteDot) -> Any:
    """Return `end(tile, sums, numbers, inputs, unit_stride)`: add a block whose activations have one scale.

    `sums` is the tile of the steps of its groups, `numbers` where `kernels.tile_formats` keeps minimums, `inputs` the
    first cells of the block.
    """
    tile = types.UniTuple(kind, n_columns)
    emitter = _BlockEnd(kind.lanes, n_columns, unit_columns, form, how)

    @intrinsic
    def end(typing_context: Any, values: Any, sums: Any, numbers: Any, inputs: Any, unit_stride: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            totals, parts = (cgutils.unpack_tuple(builder, arg, n_columns) for arg in args[:2])
            return cgutils.pack_array(builder, emitter.emit(builder, totals, parts, *args[2:]))

        return tile(tile, tile, types.intp, types.intp, types.intp), emit

    return end


class _ColumnsOfCells:
    """Columns of quantised activations, for weights of a format."""

    def __init__(self, lanes: int, n_columns: int, unit_columns: int, form: Format) -> None:
        self.lanes, self.n_columns, self.unit_columns = lanes, n_columns, unit_columns
        self.form, self.spans = form, GROUP // form.scale_span
        self.ints, self.floats = ir.VectorType(_I32, lanes), ir.VectorType(_F32, lanes)

    def _sources(self, builder: Any, inputs: Any, unit_stride: Any) -> list[Any]:
        """The address of the cell of each column."""
        units = _unit_addresses(builder, inputs, unit_stride, self.n_columns // self.unit_columns)
        return [
            _offset(builder, units[column // self.unit_columns], column % self.unit_columns * INPUT_NBYTES)
            for column in range(self.n_columns)
        ]

    def _splat(self, builder: Any, address: Any, kind: Any) -> Any:
        return broadcast(builder, emit_load(builder, address, kind), self.lanes)


class QuantizedStep(_ColumnsOfCells):
    """`numbers` are the scales of the first and the last 16, then the minimum of formats of one group."""

    def __init__(self, lanes: int, n_columns: int, unit_columns: int, form: Format, how: ByteDot) -> None:
        super().__init__(lanes, n_columns, unit_columns, form)
        self.byte_dots = ByteDots(how, form.largest, 2 if n_columns <= FEW_COLUMNS else 1)
        self.bytes = ir.VectorType(_I8, 4 * lanes)

    def emit(
        self, builder: Any, totals: list[Any], quads: list[Any], numbers: list[Any], inputs: Any, unit_stride: Any
    ) -> list[Any]:
        sources = self._sources(builder, inputs, unit_stride)
        weights = [builder.bitcast(word, self.bytes) for word in quads]
        results = []
        for first in range(0, self.n_columns, SIDE_BY_SIDE):
            places, some = (each[first : first + SIDE_BY_SIDE] for each in (sources, totals))
            for span in range(self.spans):
                dots = self._dots(builder, weights, places, span)
                some = [
                    self._add(builder, total, dot, numbers, span, place)
                    for total, dot, place in zip(some, dots, places, strict=True)
                ]
            results += some
        return results

    def _add(self, builder: Any, total: Any, dots: Any, numbers: list[Any], span: int, source: Any) -> Any:
        """Add a column's dot products of one span; with the scale, unless a block has one."""
        dots = builder.sitofp(dots, self.floats)
        if self.form.scaled_by_block:
            return _fma(builder, dots, numbers[span], total)
        scale = self._splat(builder, _offset(builder, source, INPUT_SCALE), _F32)
        total = _fma(builder, builder.fmul(dots, scale), numbers[0], total)
        if self.form.has_minimum:
            scaled_sum = self._splat(builder, _offset(builder, source, INPUT_SCALED_SUM), _F32)
            total = _fma(builder, numbers[2], scaled_sum, total)
        return total

    def _dots(self, builder: Any, weights: list[Any], sources: list[Any], span: int) -> list[Any]:
        """The dot products of the weights less their zero point, of columns side by side."""

        def inputs(column: int, quad: int) -> Any:
            place = _offset(builder, sources[column], 4 * (first + quad))
            return builder.bitcast(self._splat(builder, place, _I32), self.bytes)

        per_span = len(weights) // self.spans
        first = span * per_span
        starts = [self._start(builder, source, span) for source in sources]
        return self.byte_dots.emit(builder, starts, weights[first : first + per_span], inputs)

    def _start(self, builder: Any, source: Any, span: int) -> Any:
        """What the dot products of a column are added to: minus the zero point times the inputs."""
        if not self.form.zero_point or self.byte_dots.less_128:
            return ir.Constant(self.ints, None)
        offset, shift = zero_point_of_inputs(self.form, span)
        start = self._splat(builder, _offset(builder, source, offset), _I32)
        if not shift:
            return start
        turn = builder.shl if shift > 0 else builder.ashr
        return turn(start, ir.Constant(self.ints, [abs(shift)] * self.lanes))


class _BlockEnd(_ColumnsOfCells):
    """Minimums are whole numbers of at most six bits, two in a lane, then the float that all are multiplied by.

    So the sum of their products with sums of inputs is whole, below 2^21: the same in whatever order it is made.
    """

    def __init__(self, lanes: int, n_columns: int, unit_columns: int, form: Format, how: ByteDot) -> None:
        super().__init__(lanes, n_columns, unit_columns, form)
        self.how: ByteDot = how

    def emit(
        self, builder: Any, totals: list[Any], parts: list[Any], numbers: Any, inputs: Any, unit_stride: Any
    ) -> list[Any]:
        sources = self._sources(builder, inputs, unit_stride)
        if self.form.has_minimum:
            parts = self._add_minimums(builder, parts, numbers, sources)
        results = []
        for total, part, source in zip(totals, parts, sources, strict=True):
            scale = self._splat(builder, _offset(builder, source, INPUT_SCALE), _F32)
            results.append(_fma(builder, part, scale, total))
        return results

    def _add_minimums(self, builder: Any, parts: list[Any], numbers: Any, sources: list[Any]) -> list[Any]:
        n_pairs = self.form.groups * self.spans // 2
        place = INPUT_SUMS_OF_HALVES if self.spans == 2 else INPUT_SUMS_OF_TWO
        cell_step = 2 // self.spans * self.unit_columns * INPUT_NBYTES
        vectors = [_offset(builder, numbers, 4 * self.lanes * (2 * n_pairs + i)) for i in range(n_pairs + 1)]
        minimums = [emit_load(builder, vector, self.ints) for vector in vectors[:-1]]
        factor = emit_load(builder, vectors[-1], self.floats)
        results = []
        for part, source in zip(parts, sources, strict=True):
            total = ir.Constant(self.ints, None)
            for i, pair in enumerate(minimums):
                at = _offset(builder, source, i * cell_step + place)
                total = emit_dot2(builder, self.how, total, pair, self._splat(builder, at, _I32))
            results.append(_fma(builder, builder.sitofp(total, self.floats), factor, part))
        return results


def tile_step_float(kind: VectorType, n_columns: int, column_nbytes: int = 0) -> Any:
    """Return `step(tile, panel, inputs, unit_stride)`: add the products of one element.

    With `column_nbytes` the inputs' columns lie that far apart, and `unit_stride` is not used.
    """
    tile = types.UniTuple(kind, n_columns)

    def column_address(builder: Any, units: list[Any], column: int) -> Any:
        if column_nbytes:
            return _offset(builder, units[0], column * column_nbytes)
        return _offset(builder, units[column // UNIT_COLUMNS], 4 * (column % UNIT_COLUMNS))

    @intrinsic
    def step(typing_context: Any, values: Any, panel: Any, inputs: Any, unit_stride: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            totals = cgutils.unpack_tuple(builder, args[0], n_columns)
            units = _unit_addresses(builder, args[2], args[3], n_columns // UNIT_COLUMNS)
            weights = emit_load(builder, args[1], kind.llvm)
            results = []
            for column, total in enumerate(totals):
                at = column_address(builder, units, column)
                value = broadcast(builder, emit_load(builder, at, _F32), kind.lanes)
                results.append(_fma(builder, weights, value, total))
            return cgutils.pack_array(builder, results)

        return tile(tile, types.intp, types.intp, types.intp), emit

    return step


def tile_load_scaled(kind: VectorType, n_columns: int) -> Any:
    """Return `load(address, stride, factors)`: each column, `stride` bytes apart, times its float32 factor."""
    tile = types.UniTuple(kind, n_columns)

    @intrinsic
    def load(typing_context: Any, address: Any, stride: Any, factors: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            place, columns = args[0], []
            for column in range(n_columns):
                factor = emit_load(builder, _offset(builder, args[2], 4 * column), _F32)
                values = emit_load(builder, place, kind.llvm)
                columns.append(builder.fmul(values, broadcast(builder, factor, kind.lanes)))
                place = builder.add(place, args[1])
            return cgutils.pack_array(builder, columns)

        return tile(types.intp, types.intp, types.intp), emit

    return load


def transpose_square(kind: VectorType) -> Any:
    """Return `transpose(source, stride, target)`: rows `stride` bytes apart become packed columns.

    As many rows as lanes: row r, element i goes to row i, element r of the target.
    """
    lanes = kind.lanes

    @intrinsic
    def transpose(typing_context: Any, source: Any, stride: Any, target: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            place, rows = args[0], []
            for _ in range(lanes):
                rows.append(emit_load(builder, place, kind.llvm))
                place = builder.add(place, args[1])
            for row, values in enumerate(_transposed(builder, rows)):
                emit_store(builder, _offset(builder, args[2], row * 4 * lanes), values)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.intp), emit

    return transpose


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Riffle row i with row i + n/2 over and over: after log2(n) rounds rows are columns."""
    n = len(rows)
    order = [lane + which * n for lane in range(n) for which in (0, 1)]
    rounds = n.bit_length() - 1
    for _ in range(rounds):
        riffled = []
        for row in range(n // 2):
            pair = rows[row], rows[row + n // 2]
            for part in (order[:n], order[n:]):
                riffled.append(builder.shuffle_vector(*pair, ir.Constant(ir.VectorType(_I32, n), part)))
        rows = riffled
    return rows
