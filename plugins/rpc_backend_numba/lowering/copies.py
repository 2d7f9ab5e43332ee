"""DUP, CPY, CONT, CONCAT, REPEAT.

Belongs here: which copy kernel fits which types and strides. Must not be here: kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpc_backend.plugin_api import ElementType, Tensor, host_address, packed_strides
from rpc_backend_numba.arguments import Code, Operand, Param, Private
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering.types import DECODABLE, ENCODABLE, F32, FLOATS, I8, I32, is_byte_like

Extents = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Shape:
    """Extents and strides of a tensor, or of the same memory seen with other extents."""

    type: ElementType
    ne: Extents
    nb: Extents

    @property
    def has_packed_rows(self) -> bool:
        return self.nb[0] == self.type.block_nbytes or self.ne[0] == self.type.block_size

    def as_bytes(self) -> _Shape:
        """The same packed rows as rows of bytes."""
        return _Shape(I8, (self.type.row_nbytes(self.ne[0]), *self.ne[1:]), (1, *self.nb[1:]))


def supports_copy(node: Tensor) -> bool:
    return _copy_kernel(node) is not None


def copy(builder: PlanBuilder, node: Tensor) -> None:
    """Elements of the source in order, converted, over the result's elements in order."""
    source = node.sources[0]
    found = _copy_kernel(node)
    assert found is not None
    kernel, source_shape, target_shape = found
    operands = [
        Operand(host_address(node), target_shape.ne, target_shape.nb, node.type.code),
        Operand(host_address(source), source_shape.ne, source_shape.nb, source.type.code),
    ]
    if not kernel.startswith("copy_rows"):
        builder.row(kernel, node, [source], [source_shape.type.block_nbytes], operands=operands)
        return
    how = kernel.partition(".")[2]
    if how == "same":
        operands = [_bytes_of(operand, source.type) for operand in operands]
    decode: Param = Code(f"to_float.{source.type.name}") if how in ("decode", "both") else 0
    encode: Param = Code(f"from_float.{node.type.name}") if how in ("encode", "both") else 0
    private = 4 * source_shape.ne[0] if how == "both" else 0
    builder.row(kernel, node, [source], [1, decode, encode, Private()], operands=operands, private_nbytes=private)


def _copy_kernel(node: Tensor) -> tuple[str, _Shape, _Shape] | None:
    """The kernel of a copy and how it sees both sides; None if there is none."""
    a = node.sources[0]
    source, target = _Shape(a.type, a.ne, a.nb), _Shape(node.type, node.ne, node.nb)
    if source.ne != target.ne and a.is_contiguous and node.is_contiguous:
        source, target = _alike(source, target)
    how = _row_codec(a.type, node.type)
    if how and source.ne == target.ne and source.has_packed_rows and target.has_packed_rows:
        return f"copy_rows.{how}", source, target
    how = _element_codec(a.type, node.type)
    if how is None and a.type is node.type and source.has_packed_rows and target.has_packed_rows:
        return "copy.same", source.as_bytes(), target.as_bytes()
    return (f"copy.{how}", source, target) if how else None


def _alike(source: _Shape, target: _Shape) -> tuple[_Shape, _Shape]:
    """Two packed shapes with the extents of one of them, if whole blocks allow."""
    for ne in (target.ne, source.ne):
        if ne[0] % source.type.block_size == 0 and ne[0] % target.type.block_size == 0:
            return (
                _Shape(source.type, ne, packed_strides(source.type, ne)),
                _Shape(target.type, ne, packed_strides(target.type, ne)),
            )
    return source, target


def _row_codec(source: ElementType, target: ElementType) -> str | None:
    if source is target:
        return "same"
    if source is F32:
        return "encode" if target in ENCODABLE else None
    if target is F32:
        return "decode" if source in DECODABLE else None
    return "both" if source in FLOATS and target in ENCODABLE else None


def _element_codec(source: ElementType, target: ElementType) -> str | None:
    if source is target:
        return "same" if is_byte_like(source) else None
    if source in FLOATS and target in FLOATS:
        return "float"
    return {(F32, I32): "to_int", (I32, F32): "to_float"}.get((source, target))


def _bytes_of(operand: Operand, kind: ElementType) -> Operand:
    """The same packed rows as rows of bytes."""
    ne, nb = operand.ne, operand.nb
    return Operand(operand.address, (kind.row_nbytes(ne[0]), *ne[1:]), (1, *nb[1:]))


def supports_join(node: Tensor) -> bool:
    """CONCAT and REPEAT move elements of any plain type, or whole packed rows."""
    tensors = (node, *node.sources)
    return is_byte_like(node.type) or all(tensor.has_packed_rows for tensor in tensors)


def _joined(node: Tensor) -> tuple[list[Operand], int]:
    """How a kernel that moves elements sees the tensors, and the bytes of an element."""
    operands = [Operand.of(tensor) for tensor in (node, *node.sources)]
    if is_byte_like(node.type):
        return operands, node.type.block_nbytes
    return [_bytes_of(operand, node.type) for operand in operands], 1


def concat(builder: PlanBuilder, node: Tensor) -> None:
    operands, nbytes = _joined(node)
    params = [nbytes, 0, 0, 0, 0, int(node.params["dim"])]
    builder.row("concat", node, node.sources, params, operands=operands)


def repeat(builder: PlanBuilder, node: Tensor) -> None:
    operands, nbytes = _joined(node)
    builder.row("repeat", node, node.sources, [nbytes], operands=operands)
