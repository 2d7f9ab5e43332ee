"""Dot products of bytes, four in each int32 lane, exact in every way of a target; and of int16, two in each.

Belongs here: sums of products of unsigned and signed bytes. Must not be here: where the bytes come from (`tiles`), or
which way a CPU has (`targets`).

"pairs": `pmaddubsw` adds two products in 16 bits, which hold 2 * 127 * 128. Larger unsigned bytes are taken in two
parts, their highest bit by itself; or, 128 less, as magnitudes whose signs go to the other bytes, if none is -128.
"signed": `sdot` takes signed bytes: larger unsigned ones are taken 128 less, and 128 times the others is added.
"widened": products, of signed bytes where there are many, are added in 16 or 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from rpc_backend_numba.intrinsics import intrinsic
from rpc_backend_numba.simd.arithmetic import call_intrinsic
from rpc_backend_numba.simd.shuffles import emit_joined, emit_shuffle
from rpc_backend_numba.targets import ByteDot

_LARGEST_SIGNED = 127
_LARGEST_SUM = 2**15 - 1
_I1, _I8, _I16, _I32 = (ir.IntType(bits) for bits in (1, 8, 16, 32))
_PAIRS = {32: "llvm.x86.avx2.pmadd.ub.sw", 64: "llvm.x86.avx512.pmaddubs.w.512"}
_FOURS = {32: "llvm.x86.avx2.pmadd.wd", 64: "llvm.x86.avx512.pmaddw.d.512"}


def dot4_intrinsic(how: ByteDot, largest: int) -> Any:
    """Return `dot4(total, a, b)`: add to each int32 lane four products of bytes, unsigned times signed, exactly.

    No unsigned byte is above `largest`.
    """

    @intrinsic
    def dot4(typing_context: Any, total: Any, unsigned: Any, signed: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return emit_dot4(builder, how, largest, *args)

        return total(total, unsigned, signed), emit

    return dot4


def emit_dot4(builder: Any, how: ByteDot, largest: int, total: Any, unsigned: Any, signed: Any) -> Any:
    """Emit `dot4` on LLVM values: `total` <n x i32>, both others <4n x i8>."""
    if how == "vnni":
        return _vnni(builder, total, unsigned, signed)
    if how == "widened":
        return _widened(builder, total, unsigned, signed)
    if largest <= _LARGEST_SIGNED:
        return (_pairs if how == "pairs" else _signed)(builder, total, unsigned, signed)
    if how == "pairs":
        for part in (127, 128):
            total = _pairs(builder, total, builder.and_(unsigned, _same(unsigned.type, part)), signed)
        return total
    total = _signed(builder, total, _less_128(builder, unsigned), signed)
    for _ in range(2):
        total = _signed(builder, total, _same(unsigned.type, 64), signed)
    return total


def emit_dot2(builder: Any, how: ByteDot, total: Any, a: Any, b: Any) -> Any:
    """Emit the sum of `total` <n x i32> and of two products in each lane, of int16 in `a` and `b` <n x i32>."""
    a, b = (builder.bitcast(side, ir.VectorType(_I16, 2 * total.type.count)) for side in (a, b))
    if how in ("vnni", "pairs"):
        products = call_intrinsic(builder, _FOURS[4 * total.type.count], total.type, [a, b])
    else:
        wide = ir.VectorType(_I32, a.type.count)
        products = _add_neighbours(builder, builder.mul(builder.sext(a, wide), builder.sext(b, wide)))
    return builder.add(total, products)


class ByteDots:
    """Dot products of columns side by side with a row of weights per lane.

    `less_128` says that weights are taken 128 less than they are: all of them where `largest` is above 127, and the
    way wants signed bytes. `chains` is how many sums a column is added up in, where one would be waited for.
    """

    def __init__(self, how: ByteDot, largest: int, chains: int) -> None:
        self.less_128 = how != "vnni" and largest > _LARGEST_SIGNED
        self._how: ByteDot = how
        self._chains = chains
        self._largest = min(largest, 128)
        self._product, self._add = (_sums_of_pairs, _fours) if how == "pairs" else (_products, _widened_fours)

    def emit(self, builder: Any, starts: list[Any], weights: list[Any], inputs: Callable[[int, int], Any]) -> list[Any]:
        """Emit the sums of `starts` and of the products of weights <4n x i8> with `inputs(column, quad)`.

        Inputs are signed, and never -128.
        """
        if self.less_128:
            weights = [_less_128(builder, quad) for quad in weights]
        emit = self._emit_chains if self._how in ("vnni", "signed") else self._emit_sums
        return emit(builder, starts, weights, inputs)

    def _emit_chains(
        self, builder: Any, starts: list[Any], weights: list[Any], inputs: Callable[[int, int], Any]
    ) -> list[Any]:
        add = _vnni if self._how == "vnni" else _signed
        chains = [[ir.Constant(start.type, None)] * (self._chains - 1) + [start] for start in starts]
        for quad, weight in enumerate(weights):
            for column, dots in enumerate(chains):
                chain = quad % self._chains
                dots[chain] = add(builder, dots[chain], weight, inputs(column, quad))
        return [dots[0] if len(dots) == 1 else builder.add(*dots) for dots in chains]

    def _emit_sums(
        self, builder: Any, starts: list[Any], weights: list[Any], inputs: Callable[[int, int], Any]
    ) -> list[Any]:
        """Products, or sums of pairs, are added in 16 bits as long as they hold them."""
        per_quad = 2 if self._how == "pairs" else 1
        together = _LARGEST_SUM // (per_quad * self._largest * _LARGEST_SIGNED)
        totals, columns = starts, range(len(starts))
        for first in range(0, len(weights), together):
            sums: list[Any] = []
            for quad in range(first, min(first + together, len(weights))):
                found = [self._sixteen(builder, weights[quad], inputs(column, quad)) for column in columns]
                sums = [builder.add(a, b) for a, b in zip(sums, found, strict=True)] if sums else found
            totals = [self._add(builder, *pair) for pair in zip(totals, sums, strict=True)]
        return totals

    def _sixteen(self, builder: Any, weight: Any, column: Any) -> Any:
        if self._how == "pairs" and self.less_128:
            column = _with_sign(builder, column, weight)
            weight = call_intrinsic(builder, f"llvm.abs.v{weight.type.count}i8", weight.type, [weight, _I1(0)])
        return self._product(builder, weight, column)


def _same(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def _less_128(builder: Any, unsigned: Any) -> Any:
    return builder.xor(unsigned, _same(unsigned.type, 128))


def _vnni(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    name = f"llvm.x86.avx512.vpdpbusd.{32 * total.type.count}"  # AVX-VNNI's own encoding where that is all there is
    return call_intrinsic(builder, name, total.type, [total, unsigned, signed])


def _pairs(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    return _fours(builder, total, _sums_of_pairs(builder, unsigned, signed))


def _sums_of_pairs(builder: Any, unsigned: Any, signed: Any) -> Any:
    kind = ir.VectorType(_I16, unsigned.type.count // 2)
    return call_intrinsic(builder, _PAIRS[unsigned.type.count], kind, [unsigned, signed])


def _fours(builder: Any, total: Any, pairs: Any) -> Any:
    fours = call_intrinsic(builder, _FOURS[2 * pairs.type.count], total.type, [pairs, _same(pairs.type, 1)])
    return builder.add(total, fours)


def _with_sign(builder: Any, values: Any, signs: Any) -> Any:
    """`values`, negated where `signs` is negative; 0 or `values` where it is 0."""
    if values.type.count == 32:
        return call_intrinsic(builder, "llvm.x86.avx2.psign.b", values.type, [values, signs])
    is_negative = builder.icmp_signed("<", signs, ir.Constant(signs.type, None))
    return builder.select(is_negative, builder.neg(values), values)


def _signed(builder: Any, total: Any, a: Any, b: Any) -> Any:
    four, sixteen = ir.VectorType(_I32, 4), list(range(16))
    parts = []
    for first in range(0, total.type.count, 4):
        sums = emit_shuffle(builder, total, total, list(range(first, first + 4)))
        operands = [emit_shuffle(builder, v, v, [4 * first + lane for lane in sixteen]) for v in (a, b)]
        parts.append(call_intrinsic(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", four, [sums, *operands]))
    return emit_joined(builder, parts)


def _widened(builder: Any, total: Any, unsigned: Any, signed: Any) -> Any:
    wide = ir.VectorType(_I32, unsigned.type.count)
    products = builder.mul(builder.zext(unsigned, wide), builder.sext(signed, wide))
    pairs = _add_neighbours(builder, products)
    return builder.add(total, _add_neighbours(builder, pairs))


def _products(builder: Any, a: Any, b: Any) -> Any:
    """Products of signed bytes in 16 bits."""
    wide = ir.VectorType(_I16, a.type.count)
    return builder.mul(builder.sext(a, wide), builder.sext(b, wide))


def _widened_fours(builder: Any, total: Any, products: Any) -> Any:
    wide = builder.sext(products, ir.VectorType(_I32, products.type.count))
    return builder.add(total, _add_neighbours(builder, _add_neighbours(builder, wide)))


def _add_neighbours(builder: Any, values: Any) -> Any:
    lanes = range(0, values.type.count, 2)
    even, odd = (emit_shuffle(builder, values, values, [lane + first for lane in lanes]) for first in (0, 1))
    return builder.add(even, odd)
