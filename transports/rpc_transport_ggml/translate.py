"""ggml-rpc's tensors and graphs as the worker's own records.

Belongs here: what a record of the other side means. Must not be here: its rules, which the worker checks.

Nodes that compute nothing (views, reshapes, …) are left out, and every tensor is told by its absolute place: whoever
reads a view reads a leaf that lies in the same bytes. A stride is cut to 32 bits on this wire, so tensors that need a
larger one are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rpc_backend.plugin_api import (
    ELEMENT_TYPES,
    OPS,
    ElementType,
    GraphError,
    UnsupportedOpError,
    extent_nbytes,
    packed_strides,
)
from rpc_transport_ggml.names import op_name, type_name
from rpc_transport_ggml.places import Places
from rpc_transport_ggml.wire import FLAG_COMPUTE, GraphRecord, TensorRecord

Record = list[Any]

_NONE = 0
_LEAF = -1
_STRIDE_LIMIT = 1 << 32
_COMPUTING = {op.code for op in OPS.values() if op.moves_data}
_DESCRIBING = {op.code for op in OPS.values() if not op.moves_data} | {_NONE}


class Placed(NamedTuple):
    """A tensor as the worker knows it, its device, and the bytes it spans."""

    record: Record
    device: int
    nbytes: int


def tensor_record(record: TensorRecord, places: Places) -> Placed:
    """Return one placed tensor. Raises GraphError: unknown type, cut stride, no place."""
    region, offset = places.locate(record)
    kind = _kind(record)
    _check_strides(record, kind, {})
    return Placed(_encode(record, region.handle, offset), region.device, extent_nbytes(kind, record.ne, record.nb))


def graph_record(graph: GraphRecord, places: Places) -> Record:
    """Return the record of a graph; its list of nodes may be empty.

    Raises:
        UnsupportedOpError: an operation that no worker knows; the message has its shape and type.
        GraphError: ids without a tensor or used twice, a node that needs a later one, or as `tensor_record`.
    """
    by_id = {record.id: record for record in graph.tensors}
    if len(by_id) != len(graph.tensors) or 0 in by_id:
        raise GraphError("a graph lists two tensors under one id, or one under 0")
    nodes = [_find(by_id, node_id, "the list of nodes") for node_id in graph.node_ids]
    return _GraphTranslation(by_id, places).translate([node for node in nodes if _computes(node)])


def question_record(record: TensorRecord, sources: Sequence[TensorRecord]) -> Record:
    """Return the record of a question about a tensor, which has no places. Raises as `graph_record`."""
    _check_strides(record, _kind(record), {})
    if record.op in _DESCRIBING:
        return [[_encode(record, 0, 0)], []]
    _check_op(record)
    used = _without_gaps(record, sources)
    for source in used:
        _check_strides(source, _kind(source), {})
    leaves = [_encode(source, 0, 0) for source in used]
    return [[*leaves, _encode(record, 0, 0, record.op, range(len(leaves)))], [len(leaves)]]


class _GraphTranslation:
    """The records of one graph so far, and the number of each tensor among them."""

    def __init__(self, by_id: Mapping[int, TensorRecord], places: Places) -> None:
        self._by_id = by_id
        self._places = places
        self._records: list[Record] = []
        self._numbers: dict[int, int] = {}

    def translate(self, nodes: Sequence[TensorRecord]) -> Record:
        waiting = {node.id for node in nodes}
        if len(waiting) != len(nodes):
            raise GraphError("a graph lists one node twice")
        numbers = []
        for node in nodes:
            _check_op(node)
            used = [_find(self._by_id, source, node.name) for source in _used(node)]
            late = next((source for source in used if source.id in waiting), None)
            if late is not None:
                raise GraphError(f"node {node.name!r} needs {late.name!r}, which is computed with or after it")
            sources = [self._number(source) for source in used]
            waiting.remove(node.id)
            numbers.append(self._add(node, node.op, sources))
        return [self._records, numbers]

    def _number(self, record: TensorRecord) -> int:
        known = self._numbers.get(record.id)
        return self._add(record, _LEAF, []) if known is None else known

    def _add(self, record: TensorRecord, op: int, sources: list[int]) -> int:
        region, offset = self._places.locate(record)
        _check_strides(record, _kind(record), self._by_id)
        number = self._numbers[record.id] = len(self._records)
        self._records.append(_encode(record, region.handle, offset, op, sources))
        return number


def _encode(record: TensorRecord, handle: int, offset: int, op: int = _LEAF, sources: Sequence[int] = ()) -> Record:
    params = b"" if op == _LEAF else record.op_params
    return [record.type, record.ne, record.nb, op, params, list(sources), -1, 0, handle, offset, record.name]


def _computes(record: TensorRecord) -> bool:
    return bool(record.flags & FLAG_COMPUTE) and record.op not in _DESCRIBING


def _used(record: TensorRecord) -> list[int]:
    return [source for source in _without_gaps(record, record.sources) if source]


def _without_gaps(record: TensorRecord, sources: Sequence[Any]) -> list[Any]:
    """Return the sources up to the last one; raise UnsupportedOpError if one before it is left out."""
    there = [bool(source if isinstance(source, int) else source.id) for source in sources]
    count = len(there) - there[::-1].index(True) if any(there) else 0
    if not all(there[:count]):
        raise UnsupportedOpError(f"{_describe(record)} leaves out source {there.index(False)}, which is not supported")
    return list(sources[:count])


def _find(by_id: Mapping[int, TensorRecord], key: int, user: str) -> TensorRecord:
    found = by_id.get(key)
    if found is None:
        raise GraphError(f"{user!r} mentions tensor {key:#x}, which the graph does not list")
    return found


def _check_op(record: TensorRecord) -> None:
    if record.op not in _COMPUTING:
        raise UnsupportedOpError(f"{_describe(record)} is not supported")


def _describe(record: TensorRecord) -> str:
    return f"{op_name(record.op)} {record.name!r} {type_name(record.type)} {list(record.ne)}"


def _kind(record: TensorRecord) -> ElementType:
    kind = ELEMENT_TYPES.get(record.type)
    if kind is None:
        raise GraphError(f"tensor {record.name!r} has the unsupported element type {type_name(record.type)}")
    return kind


def _check_strides(record: TensorRecord, kind: ElementType, by_id: Mapping[int, TensorRecord]) -> None:
    """Refuse a tensor whose true strides may be too large for the wire."""
    ne = record.ne
    packed = packed_strides(kind, ne)
    last = max((axis for axis in range(4) if ne[axis] > 1), default=0)
    too_large = packed[last] >= _STRIDE_LIMIT
    root = by_id.get(record.view_source)
    if root is not None and any(ne[axis] > 1 and record.nb[axis] != packed[axis] for axis in range(1, 4)):
        whole = packed_strides(_kind(root), root.ne)
        too_large = too_large or whole[3] * root.ne[3] >= _STRIDE_LIMIT
    if too_large:
        raise GraphError(f"tensor {record.name!r} {list(ne)} needs a stride of 4 GiB or more, which ggml-rpc cuts")
