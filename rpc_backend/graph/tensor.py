"""The tensor: four extents, four strides in bytes, where it comes from and where it lies.

Belongs here: the record and what follows from its own shape. Must not be here: rules of single
operations (`ops`), checks of untrusted tensors (`validate`), or element access.

Source: `ne`, `nb`, `view_src`, `view_offs` and op parameters mean what they mean in ggml; all sizes
here are 64-bit, and a tensor's place is a buffer and an offset instead of an address.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rpc_backend.errors import GraphError
from rpc_backend.graph.element_types import ElementType

if TYPE_CHECKING:
    from rpc_backend.graph.ops import Op

MAX_DIMS = 4
MAX_SOURCES = 10
OP_PARAMS_NBYTES = 64

Extents = tuple[int, int, int, int]


class Tensor:
    """A value of a graph.

    `ne` counts elements and `nb` bytes from one element to the next, innermost first. `op` is None for
    a leaf. A view has `view_src` (never itself a view) and lies `view_offs` bytes into it. `buffer` is
    the memory object it is placed in (None = not placed) and `offset` its first byte there; a view has
    no place of its own, `location()` gives its source's.
    """

    __slots__ = (
        "buffer", "name", "nb", "ne", "offset", "op", "op_params", "sources", "type", "view_offs", "view_src",
    )  # fmt: skip

    def __init__(
        self,
        type: ElementType,
        ne: Sequence[int],
        *,
        nb: Sequence[int] | None = None,
        op: Op | None = None,
        op_params: bytes = bytes(OP_PARAMS_NBYTES),
        sources: Sequence[Tensor] = (),
        view_src: Tensor | None = None,
        view_offs: int = 0,
        name: str = "",
    ) -> None:
        self.type = type
        self.ne = _four(ne)
        self.nb: Extents = packed_strides(type, self.ne) if nb is None else (nb[0], nb[1], nb[2], nb[3])
        self.op = op
        self.op_params = op_params
        self.sources = tuple(sources)
        self.view_src = view_src
        self.view_offs = view_offs
        self.name = name
        self.buffer: Any = None
        self.offset = 0

    @property
    def n_elements(self) -> int:
        return math.prod(self.ne)

    @property
    def n_rows(self) -> int:
        return self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the end of the last, strides included (`ggml_nbytes`)."""
        return extent_nbytes(self.type, self.ne, self.nb)

    @property
    def params(self) -> dict[str, int | float]:
        """The op parameters by name; empty for a leaf."""
        return self.op.unpack_params(self.op_params) if self.op else {}

    @property
    def is_contiguous(self) -> bool:
        """Whether elements lie packed in memory order; strides of extents of 1 do not matter."""
        return _matches(self.ne, self.nb, packed_strides(self.type, self.ne), self.type.block_size)

    @property
    def has_packed_rows(self) -> bool:
        """Whether each row is packed, whatever the distance between rows."""
        return self.nb[0] == self.type.block_nbytes

    @property
    def is_transposed(self) -> bool:
        return self.nb[0] > self.nb[1]

    def location(self) -> tuple[Any, int]:
        """Return the buffer and the offset in bytes of the first element; (None, 0) if not placed."""
        if self.view_src is None:
            return self.buffer, self.offset
        buffer, offset = self.view_src.location()
        return buffer, offset + self.view_offs

    def __repr__(self) -> str:
        op = self.op.name if self.op else "leaf"
        return f"<{op} {self.name or 'unnamed'} {self.type.name} {list(self.ne)}>"


def packed_strides(type: ElementType, ne: Extents) -> Extents:
    """Return the strides in bytes of packed elements."""
    row = type.row_nbytes(ne[0])
    return (type.block_nbytes, row, row * ne[1], row * ne[1] * ne[2])


def extent_nbytes(type: ElementType, ne: Extents, nb: Extents) -> int:
    """Return the bytes that a tensor of these extents and strides spans; 0 if any extent is 0."""
    if 0 in ne:
        return 0
    if type.block_size == 1:
        return type.block_nbytes + sum((count - 1) * stride for count, stride in zip(ne, nb, strict=True))
    outer = sum((count - 1) * stride for count, stride in zip(ne[1:], nb[1:], strict=True))
    return ne[0] * nb[0] // type.block_size + outer


def _four(ne: Sequence[int]) -> Extents:
    if not 1 <= len(ne) <= MAX_DIMS:
        raise GraphError(f"a tensor has 1 to {MAX_DIMS} extents, not {len(ne)}: {list(ne)}")
    padded = [int(extent) for extent in ne] + [1] * (MAX_DIMS - len(ne))
    if min(padded) < 0:
        raise GraphError(f"negative extent in {padded}")
    return (padded[0], padded[1], padded[2], padded[3])


def _matches(ne: Extents, nb: Extents, packed: Extents, block_size: int) -> bool:
    if 0 in ne:
        return True
    inner = ne[0] == block_size or nb[0] == packed[0]
    return inner and all(ne[axis] == 1 or nb[axis] == packed[axis] for axis in range(1, MAX_DIMS))
