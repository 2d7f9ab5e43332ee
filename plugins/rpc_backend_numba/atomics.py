"""Atomic operations and calls through addresses.

Belongs here: what compute threads use to meet, and to jump into kernels. Must not be here: the walker that uses
them. All threads see additions, exchanges and loads in one order.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from rpc_backend_numba.intrinsics import intrinsic
from rpc_backend_numba.targets import is_x86

_I32, _I64, _POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()


def _place(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _I64.as_pointer())


@intrinsic
def atomic_add(typing_context: Any, address: Any, amount: Any) -> Any:
    """Add to the int64 at `address` and return what was there before."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _place(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.intp, types.int64), emit


@intrinsic
def atomic_load(typing_context: Any, address: Any) -> Any:
    """The int64 at `address`; what its writer wrote before is visible after."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.load_atomic(_place(builder, args[0]), "seq_cst", 8)

    return types.int64(types.intp), emit


@intrinsic
def atomic_store(typing_context: Any, address: Any, value: Any) -> Any:
    """Put an int64 at `address` after all writes before."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _place(builder, args[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), emit


@intrinsic
def compare_exchange(typing_context: Any, address: Any, expected: Any, value: Any) -> Any:
    """Put `value` at `address` if `expected` is there; return whether it was."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        outcome = builder.cmpxchg(_place(builder, args[0]), args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(outcome, 1)

    return types.boolean(types.intp, types.int64, types.int64), emit


@intrinsic
def pause(typing_context: Any) -> Any:
    """Tell the CPU that this is a waiting loop."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if is_x86():
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), name), [])
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def call_c(typing_context: Any, address: Any, argument: Any) -> Any:
    """Call the C function `int f(void *)` at `address`."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I64])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])

    return types.int32(types.intp, types.intp), emit


def code_call(n_args: int) -> Any:
    """Return `call(address, a, b, …)`, which calls machine code of `compile_function` with `n_args` int64s."""

    @intrinsic
    def call(typing_context: Any, address: Any, *values: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = ir.FunctionType(_I32, [_POINTER, _POINTER, *([_I64] * n_args)])
            unused = builder.bitcast(cgutils.alloca_once(builder, ir.ArrayType(_I64, 2)), _POINTER)
            unpacked = cgutils.unpack_tuple(builder, args[1], n_args)
            builder.call(builder.inttoptr(args[0], kind.as_pointer()), [unused, unused, *unpacked])
            return context.get_dummy_value()

        return types.void(types.intp, types.StarArgTuple([types.intp] * n_args)), emit

    return call
