"""Register tiles: one vector of results per column.

Belongs here: the inner steps of matrix products as single operations, so that their unrolled code is emitted
here and not typed line by line by numba. Must not be here: loops over memory.

A tile is a numba tuple of `n_columns` float32 vectors; lane i is row i of a panel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from rpc_backend_numba.formats import (
    GROUP,
    TILE_INPUT_NBYTES,
    TILE_INPUT_SCALES,
    UNIT_COLUMNS,
    panel_group_nbytes,
)
from rpc_backend_numba.intrinsics import intrinsic
from rpc_backend_numba.simd.arithmetic import broadcast, call_intrinsic, emit_dot4, suffix
from rpc_backend_numba.simd.memory import emit_load, emit_store
from rpc_backend_numba.simd.vectors import VectorType

_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()


def _offset(builder: Any, address: Any, nbytes: int) -> Any:
    return builder.add(address, ir.Constant(_I64, nbytes)) if nbytes else address


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return call_intrinsic(builder, f"llvm.fmuladd.{suffix(a.type)}", a.type, [a, b, c])


def _unit_addresses(builder: Any, inputs: Any, unit_stride: Any, n_columns: int) -> list[Any]:
    """The address of each unit of four columns."""
    units = [inputs]
    for _ in range(1, n_columns // UNIT_COLUMNS):
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


def tile_step_quantized(kind: VectorType, n_columns: int, scale_span: int, has_minimum: bool, native: bool) -> Any:
    """Return `step(tile, panel, inputs, unit_stride)`: add the products of one group of 32."""
    tile = types.UniTuple(kind, n_columns)
    emitter = _QuantizedStep(kind.lanes, n_columns, scale_span, has_minimum, native)

    @intrinsic
    def step(typing_context: Any, values: Any, panel: Any, inputs: Any, unit_stride: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            totals = cgutils.unpack_tuple(builder, args[0], n_columns)
            return cgutils.pack_array(builder, emitter.emit(builder, totals, *args[1:]))

        return tile(tile, types.intp, types.intp, types.intp), emit

    return step


class _QuantizedStep:
    def __init__(self, lanes: int, n_columns: int, scale_span: int, has_minimum: bool, native: bool) -> None:
        self.lanes, self.n_columns, self.native, self.has_minimum = lanes, n_columns, native, has_minimum
        self.spans = GROUP // scale_span
        self.span_nbytes = panel_group_nbytes(scale_span, has_minimum, lanes) // self.spans
        self.quads = 8 // self.spans
        self.bytes = ir.VectorType(_I8, 4 * lanes)
        self.ints, self.floats = ir.VectorType(_I32, lanes), ir.VectorType(_F32, lanes)

    def emit(self, builder: Any, totals: list[Any], panel: Any, inputs: Any, unit_stride: Any) -> list[Any]:
        units = _unit_addresses(builder, inputs, unit_stride, self.n_columns)
        for span in range(self.spans):
            base = _offset(builder, panel, span * self.span_nbytes)
            totals = list(self._span(builder, totals, base, units, span))
        return totals

    def _span(self, builder: Any, totals: list[Any], panel: Any, units: list[Any], span: int) -> Iterator[Any]:
        width = 4 * self.lanes
        weights = [emit_load(builder, _offset(builder, panel, width * quad), self.bytes) for quad in range(self.quads)]
        meta = _offset(builder, panel, width * self.quads)
        start = emit_load(builder, meta, self.ints)
        scale = emit_load(builder, _offset(builder, meta, width), self.floats)
        minimum = emit_load(builder, _offset(builder, meta, 2 * width), self.floats) if self.has_minimum else None
        for column, total in enumerate(totals):
            source = _offset(builder, units[column // UNIT_COLUMNS], column % UNIT_COLUMNS * TILE_INPUT_NBYTES)
            dot = start
            for quad, weight in enumerate(weights):
                at = _offset(builder, source, 4 * (span * self.quads + quad))
                dot = emit_dot4(builder, self.native, dot, self._splat_bytes(builder, at), weight)
            scales = _offset(builder, source, TILE_INPUT_SCALES)
            by_scale = builder.fmul(builder.sitofp(dot, self.floats), self._splat_float(builder, scales))
            total = _fma(builder, by_scale, scale, total)
            if minimum is not None:
                which = 12 if self.spans == 1 else 4 + 4 * span
                sums = self._splat_float(builder, _offset(builder, scales, which))
                total = _fma(builder, minimum, sums, total)
            yield total

    def _splat_bytes(self, builder: Any, address: Any) -> Any:
        return builder.bitcast(broadcast(builder, emit_load(builder, address, _I32), self.lanes), self.bytes)

    def _splat_float(self, builder: Any, address: Any) -> Any:
        return broadcast(builder, emit_load(builder, address, _F32), self.lanes)


def panel_store(lanes: int, zero_point: int, scale_span: int, has_minimum: bool, native: bool) -> Any:
    """Return `store(target, words, d0, d1, m0, m1)`: put a group of 32 weights of each row into a panel.

    `words` are the eight words of bytes before `zero_point` is taken off; scales and minimums belong to the first and
    last 16.
    """
    spans = GROUP // scale_span
    quads, width = 8 // spans, 4 * lanes
    span_nbytes = panel_group_nbytes(scale_span, has_minimum, lanes) // spans
    bytes_, ints = ir.VectorType(_I8, 4 * lanes), ir.VectorType(_I32, lanes)

    def emit_span(builder: Any, target: Any, words: list[Any], numbers: list[Any]) -> None:
        total = ir.Constant(ints, None)
        zero, one = (ir.Constant(bytes_, [value] * bytes_.count) for value in (zero_point, 1))
        for quad, word in enumerate(words):
            weights = builder.bitcast(word, bytes_)
            total = emit_dot4(builder, native, total, weights, one)
            emit_store(builder, _offset(builder, target, width * quad), builder.sub(weights, zero))
        all_zeros = ir.Constant(ints, [scale_span * zero_point] * lanes)
        start = builder.mul(builder.sub(all_zeros, total), ir.Constant(ints, [128] * lanes))
        for place, number in enumerate([start, *numbers], quads):
            emit_store(builder, _offset(builder, target, width * place), number)

    @intrinsic
    def store(typing_context: Any, target: Any, words: Any, d0: Any, d1: Any, m0: Any, m1: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            every = cgutils.unpack_tuple(builder, args[1])
            scales, minimums = args[2:4], args[4:6]
            for span in range(spans):
                numbers = [scales[span], minimums[span]] if has_minimum else [scales[span]]
                base = _offset(builder, args[0], span * span_nbytes)
                emit_span(builder, base, every[span * quads : (span + 1) * quads], numbers)
            return context.get_dummy_value()

        return types.void(types.intp, words, d0, d1, m0, m1), emit

    return store


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
            units = _unit_addresses(builder, args[2], args[3], n_columns)
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
