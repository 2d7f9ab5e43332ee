"""Moves between lanes.

Belongs here: taking vectors apart and joining them. Must not be here: arithmetic.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from rpc_backend_numba.intrinsics import intrinsic
from rpc_backend_numba.simd.vectors import VectorType, vector
from rpc_backend_numba.targets import ByteLookup

_I32 = ir.IntType(32)


def emit_shuffle(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    """Emit a vector of lanes of `a` and, numbered after those, `b`."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))


@intrinsic
def concat(typing_context: Any, a: Any, b: Any) -> Any:
    """The lanes of `a`, then those of `b`."""
    if not isinstance(a, VectorType) or a != b:
        return None

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit_shuffle(builder, args[0], args[1], list(range(2 * a.lanes)))

    return vector(a.element, 2 * a.lanes)(a, a), emit


def _part(first: bool, a: Any) -> Any:
    if not isinstance(a, VectorType):
        return None
    lanes = a.lanes // 2
    start = 0 if first else lanes

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit_shuffle(builder, args[0], args[0], list(range(start, start + lanes)))

    return vector(a.element, lanes)(a), emit


@intrinsic
def low_half(typing_context: Any, a: Any) -> Any:
    """The first half of the lanes."""
    return _part(True, a)


@intrinsic
def high_half(typing_context: Any, a: Any) -> Any:
    """The second half of the lanes."""
    return _part(False, a)


def _every_second(first: int, a: Any) -> Any:
    if not isinstance(a, VectorType):
        return None

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit_shuffle(builder, args[0], args[0], list(range(first, a.lanes, 2)))

    return vector(a.element, a.lanes // 2)(a), emit


@intrinsic
def even_lanes(typing_context: Any, a: Any) -> Any:
    """Lanes 0, 2, 4, …"""
    return _every_second(0, a)


@intrinsic
def odd_lanes(typing_context: Any, a: Any) -> Any:
    """Lanes 1, 3, 5, …"""
    return _every_second(1, a)


@intrinsic
def interleave(typing_context: Any, a: Any, b: Any) -> Any:
    """Lanes of `a` and `b` in turn: a0, b0, a1, b1, …"""
    if not isinstance(a, VectorType) or a != b:
        return None
    order = [lane + a.lanes * which for lane in range(a.lanes) for which in (0, 1)]

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit_shuffle(builder, args[0], args[1], order)

    return vector(a.element, 2 * a.lanes)(a, a), emit


@intrinsic
def add_pairs(typing_context: Any, a: Any, b: Any) -> Any:
    """Sums of neighbours of two vectors of eight: a01, a23, b01, b23, a45, a67, b45, b67."""
    if not isinstance(a, VectorType) or a != b or a.lanes != 8 or not isinstance(a.element, types.Integer):
        return None

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = emit_shuffle(builder, args[0], args[1], [0, 2, 8, 10, 4, 6, 12, 14])
        second = emit_shuffle(builder, args[0], args[1], [1, 3, 9, 11, 5, 7, 13, 15])
        return builder.add(first, second)

    return a(a, b), emit


@intrinsic
def extract(typing_context: Any, a: Any, lane: Any) -> Any:
    """`extract(v, lane)`: one lane as a scalar."""
    if not isinstance(a, VectorType):
        return None

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.extract_element(args[0], args[1])

    return a.element(a, types.intp), emit


@intrinsic
def place(typing_context: Any, a: Any, value: Any, lane: Any) -> Any:
    """`place(v, scalar, lane)`: `v` with one lane replaced."""
    if not isinstance(a, VectorType):
        return None

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.insert_element(args[0], context.cast(builder, args[1], sig.args[1], a.element), args[2])

    return a(a, value, types.intp), emit


@intrinsic
def all_lanes(typing_context: Any, mask: Any) -> Any:
    """Whether every lane of truth values holds."""
    if not isinstance(mask, VectorType) or mask.element != types.boolean:
        return None

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = ir.IntType(mask.lanes)
        return builder.icmp_unsigned("==", builder.bitcast(args[0], bits), ir.Constant(bits, (1 << mask.lanes) - 1))

    return types.boolean(mask), emit


@intrinsic
def lanes_of_bits(typing_context: Any, bits: Any) -> Any:
    """A uint32 as 32 truth values, lowest bit first."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.VectorType(ir.IntType(1), 32))

    return vector(types.boolean, 32)(types.uint32), emit


_BYTES16 = ir.VectorType(ir.IntType(8), 16)
_TABLE_LOOKUP = "llvm.aarch64.neon.tbl1.v16i8"
_BYTE_SHUFFLES = {32: "avx2.pshuf.b", 64: "avx512.pshuf.b.512"}


def lookup_intrinsic(table: tuple[int, ...], how: ByteLookup) -> Any:
    """Return `lookup(v)`: of each uint8 lane below 16, the byte at that position of `table`."""

    @intrinsic
    def lookup(typing_context: Any, places: Any) -> Any:
        if not isinstance(places, VectorType):
            return None

        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return emit_lookup(builder, table, how, args[0])

        return places(places), emit

    return lookup


def emit_lookup(builder: Any, table: tuple[int, ...], how: ByteLookup, places: Any) -> Any:
    """Emit the lookup of 32 or 64 bytes in a table of 16."""
    lanes = places.type.count
    if how == "pshufb":
        name = f"llvm.x86.{_BYTE_SHUFFLES[lanes]}"
        return _call_lookup(builder, name, [ir.Constant(places.type, list(table) * (lanes // 16)), places])
    if how == "tbl":
        whole = ir.Constant(_BYTES16, list(table))
        parts = [emit_shuffle(builder, places, places, list(range(at, at + 16))) for at in range(0, lanes, 16)]
        return emit_joined(builder, [_call_lookup(builder, _TABLE_LOOKUP, [whole, part]) for part in parts])
    found = [ir.Constant(places.type, [value] * lanes) for value in table]
    for bit in (1, 2, 4, 8):
        bits = builder.and_(places, ir.Constant(places.type, [bit] * lanes))
        is_set = builder.icmp_unsigned("!=", bits, ir.Constant(places.type, None))
        found = [builder.select(is_set, b, a) for a, b in zip(found[::2], found[1::2], strict=True)]
    return found[0]


def _call_lookup(builder: Any, name: str, args: list[Any]) -> Any:
    kind = ir.FunctionType(args[1].type, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def emit_joined(builder: Any, parts: list[Any]) -> Any:
    """Emit one vector of all lanes of vectors, whose number is a power of two."""
    while len(parts) > 1:
        lanes = list(range(2 * parts[0].type.count))
        parts = [emit_shuffle(builder, a, b, lanes) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
