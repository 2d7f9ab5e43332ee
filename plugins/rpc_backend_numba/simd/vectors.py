"""The vector type and its operators.

Belongs here: the numba type, how LLVM sees it, and `+ - * & | ^ << >>` and comparisons. Must not be here:
named operations (`arithmetic`, `shuffles`) and memory (`memory`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model

_ELEMENTS: dict[types.Type, ir.Type] = {
    types.boolean: ir.IntType(1),
    types.int8: ir.IntType(8),
    types.uint8: ir.IntType(8),
    types.int16: ir.IntType(16),
    types.uint16: ir.IntType(16),
    types.int32: ir.IntType(32),
    types.uint32: ir.IntType(32),
    types.int64: ir.IntType(64),
    types.uint64: ir.IntType(64),
    types.float16: ir.HalfType(),
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
}


class VectorType(types.Type):
    """`lanes` elements of one numba scalar type, worked on together."""

    def __init__(self, element: types.Type, lanes: int) -> None:
        self.element: Any = element  # numba's stubs do not know the fields of its scalar types
        self.lanes = lanes
        super().__init__(name=f"vector({element}x{lanes})")

    @property
    def is_float(self) -> bool:
        return isinstance(self.element, types.Float)

    @property
    def is_signed(self) -> bool:
        return isinstance(self.element, types.Integer) and self.element.signed  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def llvm(self) -> ir.VectorType:
        return ir.VectorType(_ELEMENTS[self.element], self.lanes)

    def with_element(self, element: types.Type) -> VectorType:
        return vector(element, self.lanes)


@cache
def vector(element: types.Type, lanes: int) -> VectorType:
    """Return the vector type of `lanes` times `element`."""
    return VectorType(element, lanes)


def llvm_scalar(element: types.Type) -> Any:
    """Return the LLVM type of a lane."""
    return _ELEMENTS[element]


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: VectorType) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm)


def _is_pair(args: tuple[Any, ...]) -> bool:
    return len(args) == 2 and isinstance(args[0], VectorType) and args[0] == args[1]


def _binary(function: Callable[..., Any], emit: Callable[..., Any], *, compares: bool = False) -> None:
    @infer_global(function)  # pyright: ignore[reportOptionalCall]
    class Template(AbstractTemplate):  # pyright: ignore[reportUnusedClass]
        def generic(self, args: Any, kws: Any) -> Any:
            if not _is_pair(args):
                return None
            result = args[0].with_element(types.boolean) if compares else args[0]
            return signature(result, *args)

    @lower_builtin(function, VectorType, VectorType)
    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit(builder, sig.args[0], *args)


def _arithmetic(for_floats: str, for_ints: str) -> Callable[..., Any]:
    return lambda builder, kind, a, b: getattr(builder, for_floats if kind.is_float else for_ints)(a, b)


def _shift_right(builder: Any, kind: VectorType, a: Any, b: Any) -> Any:
    return builder.ashr(a, b) if kind.is_signed else builder.lshr(a, b)


def _compare(how: str) -> Callable[..., Any]:
    def emit(builder: Any, kind: VectorType, a: Any, b: Any) -> Any:
        if kind.is_float:
            return builder.fcmp_ordered(how, a, b)
        return builder.icmp_signed(how, a, b) if kind.is_signed else builder.icmp_unsigned(how, a, b)

    return emit


@infer_global(operator.neg)  # pyright: ignore[reportOptionalCall]
class _Negate(AbstractTemplate):
    def generic(self, args: Any, kws: Any) -> Any:
        return signature(args[0], args[0]) if len(args) == 1 and isinstance(args[0], VectorType) else None


@lower_builtin(operator.neg, VectorType)
def _lower_negate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fneg(args[0]) if sig.args[0].is_float else builder.neg(args[0])


_binary(operator.add, _arithmetic("fadd", "add"))
_binary(operator.sub, _arithmetic("fsub", "sub"))
_binary(operator.mul, _arithmetic("fmul", "mul"))
_binary(operator.truediv, _arithmetic("fdiv", "sdiv"))
_binary(operator.and_, lambda builder, kind, a, b: builder.and_(a, b))
_binary(operator.or_, lambda builder, kind, a, b: builder.or_(a, b))
_binary(operator.xor, lambda builder, kind, a, b: builder.xor(a, b))
_binary(operator.lshift, lambda builder, kind, a, b: builder.shl(a, b))
_binary(operator.rshift, _shift_right)
for _function, _how in ((operator.lt, "<"), (operator.le, "<="), (operator.gt, ">"), (operator.ge, ">="),
                        (operator.eq, "=="), (operator.ne, "!=")):  # fmt: skip
    _binary(_function, _compare(_how), compares=True)
