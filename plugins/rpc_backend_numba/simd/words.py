"""Bytes of as many rows as a vector has lanes: lane i of each vector belongs to row i.

Belongs here: words of four bytes out of many rows, and bits out of words, as single operations. Must not be here:
what the bits mean (`kernels.tile_formats`).

`words` are a numba tuple of uint32 vectors. Rows lie `stride` bytes apart; those after row `last` are read as row
`last`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from rpc_backend_numba.intrinsics import intrinsic
from rpc_backend_numba.simd.arithmetic import broadcast, call_intrinsic, suffix
from rpc_backend_numba.simd.memory import emit_load
from rpc_backend_numba.simd.shuffles import emit_joined, emit_lookup, emit_shuffle
from rpc_backend_numba.simd.vectors import vector
from rpc_backend_numba.targets import ByteLookup

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_EACH_BYTE = 0x01010101


def _each_byte(builder: Any, value: Any, lanes: int) -> Any:
    """Emit a vector of words with the byte `value` four times."""
    return broadcast(builder, builder.mul(builder.trunc(value, _I32), ir.Constant(_I32, _EACH_BYTE)), lanes)


def _row_address(builder: Any, row: int, address: Any, stride: Any, last: Any) -> Any:
    number = ir.Constant(_I64, row)
    nearest = builder.select(builder.icmp_signed("<", last, number), last, number)
    return builder.add(address, builder.mul(nearest, stride))


def load_word(lanes: int, element: types.Type = types.uint32) -> Any:
    """Return `load(address, stride, last)`: one word of each row, of four bytes or of the size of `element`."""
    kind = vector(element, lanes)

    @intrinsic
    def load(typing_context: Any, address: Any, stride: Any, last: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            result = ir.Constant(kind.llvm, ir.Undefined)
            for row in range(lanes):
                word = emit_load(builder, _row_address(builder, row, *args), kind.llvm.element)
                result = builder.insert_element(result, word, ir.Constant(_I32, row))
            return result

        return kind(types.intp, types.intp, types.intp), emit

    return load


def load_words(lanes: int, count: int, step_nbytes: int) -> Any:
    """Return `load(address)`: `count` words of each row, of rows that are interleaved, vectors `step_nbytes` apart."""
    kind = vector(types.uint32, lanes)

    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            places = [builder.add(args[0], ir.Constant(_I64, step_nbytes * i)) for i in range(count)]
            return cgutils.pack_array(builder, [emit_load(builder, place, kind.llvm) for place in places])

        return types.UniTuple(kind, count)(types.intp), emit

    return load


def load_four_words(lanes: int) -> Any:
    """Return `load(address, stride, last)`: four neighbouring words of each row, as four vectors."""
    kind = vector(types.uint32, lanes)
    four = ir.VectorType(_I32, 4)

    @intrinsic
    def load(typing_context: Any, address: Any, stride: Any, last: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            rows = [emit_load(builder, _row_address(builder, row, *args), four) for row in range(lanes)]
            joined = [emit_joined(builder, rows[first::4]) for first in range(4)]
            return cgutils.pack_array(builder, _transposed_fours(builder, joined))

        return types.UniTuple(kind, 4)(types.intp, types.intp, types.intp), emit

    return load


def _transposed_fours(builder: Any, rows: list[Any]) -> list[Any]:
    """Transpose each square of four lanes of four vectors."""
    lanes = rows[0].type.count

    def both(a: Any, b: Any, order: tuple[int, ...]) -> list[Any]:
        """Of each four lanes of `a` and `b`, the first halves and the last halves in an order."""
        return [
            emit_shuffle(builder, a, b, [base + half + lane for base in range(0, lanes, 4) for lane in order])
            for half in (0, 2)
        ]

    singles, pairs = (0, lanes, 1, lanes + 1), (0, 1, lanes, lanes + 1)
    low, high = both(rows[0], rows[1], singles), both(rows[2], rows[3], singles)
    return [*both(low[0], high[0], pairs), *both(low[1], high[1], pairs)]


@intrinsic
def words_bits(typing_context: Any, words: Any, shift: Any, mask: Any) -> Any:
    """`words_bits(words, shift, mask)`: of each byte the bits `mask`, once the words are shifted right."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes = words.dtype.lanes
        shifts = broadcast(builder, builder.trunc(args[1], _I32), lanes)
        masks = _each_byte(builder, args[2], lanes)
        taken = cgutils.unpack_tuple(builder, args[0])
        return cgutils.pack_array(builder, [builder.and_(builder.lshr(word, shifts), masks) for word in taken])

    return words(words, types.intp, types.intp), emit


@intrinsic
def words_or(typing_context: Any, words: Any, others: Any, shift: Any) -> Any:
    """`words_or(words, others, shift)`: the bits of both, `others` shifted left."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        shifts = broadcast(builder, builder.trunc(args[2], _I32), words.dtype.lanes)
        pairs = zip(*(cgutils.unpack_tuple(builder, arg) for arg in args[:2]), strict=True)
        return cgutils.pack_array(builder, [builder.or_(a, builder.shl(b, shifts)) for a, b in pairs])

    return words(words, words, types.intp), emit


@intrinsic
def words_merge(typing_context: Any, words: Any, others: Any, turn: Any, mask: Any) -> Any:
    """`words_merge(words, others, turn, mask)`: with those bits of each byte of `mask`, of `others` turned left.

    A turn goes round the 32 bits of a word: one by 32 - n is one to the right by n.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lanes, whole = words.dtype.lanes, words.dtype.llvm
        turns = broadcast(builder, builder.trunc(args[2], _I32), lanes)
        masks = _each_byte(builder, args[3], lanes)
        name = f"llvm.fshl.{suffix(whole)}"
        merged = []
        for a, b in zip(*(cgutils.unpack_tuple(builder, arg) for arg in args[:2]), strict=True):
            turned = call_intrinsic(builder, name, whole, [b, b, turns])
            merged.append(builder.or_(a, builder.and_(turned, masks)))
        return cgutils.pack_array(builder, merged)

    return words(words, words, types.intp, types.intp), emit


@intrinsic
def words_of_bits(typing_context: Any, bits: Any) -> Any:
    """The 32 bits of each lane as 32 bytes, 0 or 1: eight words."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def constant(value: int) -> Any:
            return ir.Constant(bits.llvm, [value] * bits.lanes)

        def spread(word: Any) -> Any:
            for shift, mask in ((14, 0x00030003), (7, _EACH_BYTE)):
                word = builder.and_(builder.or_(word, builder.shl(word, constant(shift))), constant(mask))
            return word

        fours = [builder.and_(builder.lshr(args[0], constant(4 * i)), constant(15)) for i in range(8)]
        return cgutils.pack_array(builder, [spread(word) for word in fours])

    return types.UniTuple(bits, 8)(bits), emit


@intrinsic
def words_flip(typing_context: Any, words: Any, mask: Any) -> Any:
    """`words_flip(words, mask)`: the bits `mask` of each byte inverted."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        masks = _each_byte(builder, args[1], words.dtype.lanes)
        taken = cgutils.unpack_tuple(builder, args[0])
        return cgutils.pack_array(builder, [builder.xor(word, masks) for word in taken])

    return words(words, types.intp), emit


def words_lookup(table: tuple[int, ...], how: ByteLookup) -> Any:
    """Return `lookup(words)`: of each byte below 16, the byte at that position of `table`."""

    @intrinsic
    def lookup(typing_context: Any, words: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            whole = words.dtype.llvm
            as_bytes = ir.VectorType(ir.IntType(8), 4 * words.dtype.lanes)
            found = [
                builder.bitcast(emit_lookup(builder, table, how, builder.bitcast(word, as_bytes)), whole)
                for word in cgutils.unpack_tuple(builder, args[0])
            ]
            return cgutils.pack_array(builder, found)

        return words(words), emit

    return lookup
