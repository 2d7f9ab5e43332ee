"""Loads and stores at raw addresses.

Belongs here: scalars and vectors in memory, and half-precision bits. Must not be here: address arithmetic
of tensors (`kernels`).

Addresses are `intp`. Nothing is assumed about alignment.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from rpc_backend_numba.intrinsics import intrinsic
from rpc_backend_numba.simd.arithmetic import broadcast
from rpc_backend_numba.simd.vectors import VectorType, llvm_scalar

_ADDRESS = types.intp


def _llvm_of(kind: types.Type) -> ir.Type:
    return kind.llvm if isinstance(kind, VectorType) else llvm_scalar(kind)


def _named(reference: Any) -> Any:
    """The type that a type argument names."""
    if isinstance(reference, types.NumberClass):
        return reference.dtype
    return reference.instance_type


def emit_load(builder: Any, address: Any, kind: ir.Type) -> Any:
    """Emit an unaligned load of `kind` at an integer address."""
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = 1
    return loaded


def emit_load_in_order(builder: Any, address: Any, kind: ir.Type) -> Any:
    """Emit an unaligned load that comes once, and after those before it: LLVM would move it to where it is used."""
    loaded: Any = _VolatileLoad(builder.block, builder.inttoptr(address, kind.as_pointer()))
    loaded.align = 1
    builder._insert(loaded)
    return loaded


class _VolatileLoad(ir.LoadInstr):
    """What llvmlite has no words for."""

    def descr(self, buf: list[str]) -> None:
        text: list[str] = []
        super().descr(text)
        buf.append("".join(text).replace("load ", "load volatile ", 1))


def emit_store(builder: Any, address: Any, value: Any) -> None:
    """Emit an unaligned store at an integer address."""
    stored = builder.store(value, builder.inttoptr(address, value.type.as_pointer()))
    stored.align = 1


@intrinsic
def load(typing_context: Any, kind: Any, address: Any) -> Any:
    """`load(kind, address)`: a scalar or vector of `kind`."""
    result = _named(kind)
    signature = result(kind, _ADDRESS)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit_load(builder, args[1], _llvm_of(result))

    return signature, emit


@intrinsic
def load_at(typing_context: Any, kind: Any, address: Any, index: Any) -> Any:
    """`load_at(kind, address, i)`: element i of an array of `kind`."""
    result = _named(kind)
    llvm_kind = _llvm_of(result)
    signature = result(kind, _ADDRESS, types.intp)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[1], llvm_kind.as_pointer())
        loaded = builder.load(builder.gep(pointer, [args[2]], source_etype=llvm_kind))
        loaded.align = 1
        return loaded

    return signature, emit


@intrinsic
def store(typing_context: Any, address: Any, value: Any) -> Any:
    """`store(address, value)`: a scalar or vector of the value's own type."""
    signature = types.void(_ADDRESS, value)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emit_store(builder, args[0], args[1])
        return context.get_dummy_value()

    return signature, emit


@intrinsic
def store_at(typing_context: Any, kind: Any, address: Any, index: Any, value: Any) -> Any:
    """`store_at(kind, address, i, value)`: convert a scalar to `kind`, put it at element i of an array."""
    element = _named(kind)
    llvm_kind = llvm_scalar(element)
    signature = types.void(kind, _ADDRESS, types.intp, value)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        converted = context.cast(builder, args[3], sig.args[3], element)
        pointer = builder.inttoptr(args[1], llvm_kind.as_pointer())
        stored = builder.store(converted, builder.gep(pointer, [args[2]], source_etype=llvm_kind))
        stored.align = 1
        return context.get_dummy_value()

    return signature, emit


@intrinsic
def splat_at(typing_context: Any, kind: Any, address: Any) -> Any:
    """`splat_at(kind, address)`: the one element at `address` in every lane."""
    result = _named(kind)
    signature = result(kind, _ADDRESS)

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return broadcast(builder, emit_load(builder, args[1], llvm_scalar(result.element)), result.lanes)

    return signature, emit


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Begin to fetch the cache line at `address`, which need not be memory of ours, into the second cache.

    The first one has place for few lines, and can wait for few at a time: those that are needed at once.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [pointer, *(ir.Constant(i32, value) for value in (0, 2, 1))])  # read, second cache, data
        return context.get_dummy_value()

    return types.void(_ADDRESS), emit


@intrinsic
def f32_bits(typing_context: Any, value: Any) -> Any:
    """The bits of a float32 as int32."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), emit


@intrinsic
def bits_f32(typing_context: Any, value: Any) -> Any:
    """The float32 of the bits in an int32."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), emit
