"""Named arithmetic on vectors.

Belongs here: operations lane by lane, and reductions. Must not be here: moves between lanes (`shuffles`), or products
of bytes (`byte_dots`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from rpc_backend_numba.intrinsics import intrinsic
from rpc_backend_numba.simd.vectors import VectorType, llvm_scalar

_I32 = ir.IntType(32)
_ROUNDER = 1.5 * 2.0**23
"""Adding it leaves a float32 no bits below 1."""


def broadcast(builder: Any, scalar: Any, lanes: int) -> Any:
    """Emit a vector with `scalar` in every lane."""
    kind = ir.VectorType(scalar.type, lanes)
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes))


def call_intrinsic(builder: Any, name: str, result: ir.Type, args: list[Any]) -> Any:
    """Emit a call of an LLVM intrinsic."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def suffix(kind: ir.Type) -> str:
    """Return how LLVM's overloaded intrinsics spell a type, such as `v16f32`."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{suffix(kind.element)}"
    if isinstance(kind, ir.IntType):
        return f"i{kind.width}"
    return {"half": "f16", "float": "f32", "double": "f64"}[str(kind)]


def _same(name: str) -> Any:
    def typer(kind: Any, *rest: Any) -> Any:
        if not isinstance(kind, VectorType) or any(other != kind for other in rest):
            return None

        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return call_intrinsic(builder, f"llvm.{name}.{suffix(kind.llvm)}", kind.llvm, list(args))

        return kind(kind, *rest), emit

    return typer


_FMA, _FABS, _SQRT = _same("fmuladd"), _same("fabs"), _same("sqrt")


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once where the CPU can."""
    return _FMA(a, b, c)


@intrinsic
def vabs(typing_context: Any, a: Any) -> Any:
    """The magnitude of floats."""
    return _FABS(a)


@intrinsic
def vsqrt(typing_context: Any, a: Any) -> Any:
    """The square root of floats; not a number below 0."""
    return _SQRT(a)


@intrinsic
def round_even(typing_context: Any, a: Any) -> Any:
    """Float32 below 2^22 in magnitude to whole numbers, halves to even."""
    if not isinstance(a, VectorType) or a.element != types.float32:
        return None

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        magic = ir.Constant(a.llvm, [_ROUNDER] * a.lanes)
        return builder.fsub(builder.fadd(args[0], magic), magic)

    return a(a), emit


def _choose(how: str, a: Any, b: Any) -> Any:
    if not isinstance(a, VectorType) or a != b:
        return None

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if a.is_float:
            better = builder.fcmp_ordered(how, args[0], args[1])
        else:
            compare = builder.icmp_signed if a.is_signed else builder.icmp_unsigned
            better = compare(how, args[0], args[1])
        return builder.select(better, args[0], args[1])

    return a(a, a), emit


@intrinsic
def maximum(typing_context: Any, a: Any, b: Any) -> Any:
    """The larger of each lane; `b` where a lane is not a number."""
    return _choose(">", a, b)


@intrinsic
def minimum(typing_context: Any, a: Any, b: Any) -> Any:
    """The smaller of each lane; `b` where a lane is not a number."""
    return _choose("<", a, b)


@intrinsic
def select(typing_context: Any, mask: Any, a: Any, b: Any) -> Any:
    """`a` where the mask holds, else `b`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(*args)

    return a(mask, a, b), emit


@intrinsic
def zero(typing_context: Any, kind: Any) -> Any:
    """`zero(kind)`: zeros."""
    result = kind.instance_type

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(result.llvm, None)

    return result(kind), emit


@intrinsic
def splat(typing_context: Any, kind: Any, value: Any) -> Any:
    """`splat(kind, scalar)`: the scalar, converted, in every lane."""
    result = kind.instance_type

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return broadcast(builder, context.cast(builder, args[1], sig.args[1], result.element), result.lanes)

    return result(kind, value), emit


@intrinsic
def bitcast(typing_context: Any, kind: Any, value: Any) -> Any:
    """`bitcast(kind, v)`: the same bits as another vector type of that size."""
    result = kind.instance_type

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[1], result.llvm)

    return result(kind, value), emit


@intrinsic
def convert(typing_context: Any, element: Any, value: Any) -> Any:
    """`convert(element, v)`: each lane as another element type; floats to integers truncate."""
    target = value.with_element(element.dtype)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _emit_convert(builder, args[1], value, target)

    return target(element, value), emit


def _emit_convert(builder: Any, lanes: Any, source: VectorType, target: VectorType) -> Any:
    if source.is_float and target.is_float:
        widens = source.element.bitwidth < target.element.bitwidth
        return (builder.fpext if widens else builder.fptrunc)(lanes, target.llvm)
    if source.is_float:
        return (builder.fptosi if target.is_signed else builder.fptoui)(lanes, target.llvm)
    if target.is_float:
        return (builder.sitofp if source.is_signed else builder.uitofp)(lanes, target.llvm)
    before, after = llvm_scalar(source.element).width, llvm_scalar(target.element).width
    if before == after:
        return lanes
    if before > after:
        return builder.trunc(lanes, target.llvm)
    return (builder.sext if source.is_signed else builder.zext)(lanes, target.llvm)


def _reduce(name: str, kind: Any, start: float | None) -> Any:
    if not isinstance(kind, VectorType):
        return None

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        lane = llvm_scalar(kind.element)
        seed = [] if start is None else [ir.Constant(lane, start)]
        call = call_intrinsic(builder, f"llvm.vector.reduce.{name}.{suffix(kind.llvm)}", lane, [*seed, *args])
        if kind.is_float:
            call.fastmath.add("reassoc")
        return call

    return kind.element(kind), emit


@intrinsic
def hsum(typing_context: Any, a: Any) -> Any:
    """The sum of all lanes; halves are added first, so its rounding is fixed."""
    return _reduce("fadd", a, -0.0) if getattr(a, "is_float", False) else _reduce("add", a, None)


@intrinsic
def hmax(typing_context: Any, a: Any) -> Any:
    """The largest lane."""
    return _reduce("fmax" if getattr(a, "is_float", False) else "smax", a, None)
