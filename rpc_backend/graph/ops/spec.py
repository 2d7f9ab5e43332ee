"""What one operation is: a row of the op table.

Belongs here: the record types of the table. Must not be here: single operations.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from rpc_backend.errors import GraphError

if TYPE_CHECKING:
    from rpc_backend.graph.element_types import ElementType
    from rpc_backend.graph.tensor import Extents, Tensor

_N_SLOTS = 16


class Shape(NamedTuple):
    """The element type and extents of a result."""

    type: ElementType
    ne: Extents


Sources = tuple["Tensor", ...]
ShapeRule = Callable[[Sources, Mapping[str, "int | float"], Shape | None], Shape]
"""`rule(sources, params, asked)` returns the shape that the result must have. `asked` is the shape the
caller wants, for the operations that leave it a choice; it raises GraphError when there is no answer."""


@dataclass(frozen=True, slots=True)
class Param:
    """One op parameter: the 32-bit slot of `op_params` it lies in, and its kind."""

    name: str
    slot: int
    kind: Literal["i32", "f32"] = "i32"


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: number, arity, parameters and shape rule.

    `code` is the number in ggml's `ggml_op`, protocol 7.0. `moves_data` is False for those that only
    describe memory another way.
    """

    name: str
    code: int
    min_sources: int
    max_sources: int
    rule: ShapeRule
    params: tuple[Param, ...] = ()
    moves_data: bool = True

    def unpack_params(self, raw: bytes) -> dict[str, int | float]:
        """Read the parameters by name from the 16 little-endian 32-bit slots."""
        return {
            param.name: struct.unpack_from("<i" if param.kind == "i32" else "<f", raw, 4 * param.slot)[0]
            for param in self.params
        }

    def pack_params(self, values: Mapping[str, int | float]) -> bytes:
        """Write parameters by name; those not given are 0.

        Raises:
            GraphError: a name this operation does not have, or a value out of range.
        """
        raw = bytearray(4 * _N_SLOTS)
        known = {param.name: param for param in self.params}
        for name, value in values.items():
            param = known.get(name)
            if param is None:
                raise GraphError(f"{self.name} has no parameter {name!r}; it has {', '.join(known) or 'none'}")
            try:
                struct.pack_into("<i" if param.kind == "i32" else "<f", raw, 4 * param.slot, value)
            except (struct.error, OverflowError) as error:
                raise GraphError(f"{self.name}: parameter {name}={value!r} is out of range") from error
        return bytes(raw)

    def __repr__(self) -> str:
        return self.name
