"""The graph: tensors to compute, in order.

Belongs here: order, leaves, and the record form with its content digest. Must not be here: checks of
untrusted records (`validate`), or placing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgpack

from rpc_backend.errors import GraphError
from rpc_backend.graph.element_types import element_type
from rpc_backend.graph.ops import op_of_code
from rpc_backend.graph.tensor import MAX_DIMS, MAX_SOURCES, OP_PARAMS_NBYTES, Tensor

Place = Callable[[Tensor], tuple[int, int]]
"""Gives the buffer handle and offset in bytes of a tensor that is no view; handle 0 = not placed."""

Resolve = Callable[[int], Any]
"""Gives the buffer of a handle that is not 0; raises HandleError for one it does not know."""


class Graph:
    """Nodes in an order in which each comes after its sources."""

    __slots__ = ("nodes",)

    def __init__(self, nodes: Sequence[Tensor]) -> None:
        self.nodes = tuple(nodes)

    @classmethod
    def of(cls, *outputs: Tensor) -> Graph:
        """Collect all that `outputs` depend on, depth first, sources from left to right."""
        order: dict[Tensor, None] = {}
        stack = [(tensor, False) for tensor in reversed(outputs)]
        while stack:
            tensor, expanded = stack.pop()
            if tensor in order:
                continue
            if expanded:
                order[tensor] = None
                continue
            stack.append((tensor, True))
            stack.extend((parent, False) for parent in reversed(_parents(tensor)))
        return cls([tensor for tensor in order if tensor.op is not None])

    def tensors(self) -> list[Tensor]:
        """Return leaves and nodes, each after all it refers to.

        What the nodes mention and none of them computes is a leaf here, whatever made it.
        """
        order: dict[Tensor, None] = {}
        computed = set(self.nodes)
        for node in self.nodes:
            for tensor in (*_parents(node), node):
                if tensor not in computed and tensor.view_src is not None:
                    order.setdefault(tensor.view_src)
                order.setdefault(tensor)
        return list(order)


def _parents(tensor: Tensor) -> list[Tensor]:
    return [*tensor.sources, *([tensor.view_src] if tensor.view_src is not None else [])]


def encode_tensor(tensor: Tensor, ids: dict[Tensor, int], place: Place, *, computed: bool) -> list[Any]:
    """Return the record of one tensor: plain numbers, bytes, text, for the wire and the digest.

    Fields: type, ne, nb, op (-1 = leaf), op params, source ids, view source id (-1 = none), view offset,
    buffer handle, offset, name. All references are ids of records before this one.
    """
    handle, offset = place(tensor) if tensor.view_src is None else (0, 0)
    return [
        tensor.type.code,
        list(tensor.ne),
        list(tensor.nb),
        tensor.op.code if tensor.op and computed else -1,
        tensor.op_params if computed else b"",
        [ids[source] for source in tensor.sources] if computed else [],
        -1 if tensor.view_src is None else ids[tensor.view_src],
        tensor.view_offs,
        handle,
        offset,
        tensor.name,
    ]


def encode_graph(graph: Graph, place: Place) -> list[Any]:
    """Return `[tensor records, ids of the nodes]`."""
    tensors = graph.tensors()
    ids = {tensor: index for index, tensor in enumerate(tensors)}
    computed = set(graph.nodes)
    records = [encode_tensor(tensor, ids, place, computed=tensor in computed) for tensor in tensors]
    return [records, [ids[node] for node in graph.nodes]]


def decode_graph(record: Any, resolve: Resolve) -> Graph:
    """Build the graph of a record from outside.

    Only the form is checked here (counts, kinds, references that point backwards, known types and
    operations); `validate.check_graph` checks what the tensors claim.

    Raises:
        GraphError: the record is malformed.
        HandleError: from `resolve`.
    """
    records, node_ids = _fields(record, 2, "a graph record")
    if not isinstance(records, list | tuple) or not isinstance(node_ids, list | tuple):
        raise GraphError("a graph record holds two lists: tensors and node ids")
    tensors: list[Tensor] = []
    for fields in records:
        tensors.append(decode_tensor(fields, tensors, resolve))
    return Graph(_ordered_nodes(tensors, node_ids))


def _ordered_nodes(tensors: Sequence[Tensor], node_ids: Iterable[Any]) -> list[Tensor]:
    last, nodes = -1, []
    for node_id in node_ids:
        if not isinstance(node_id, int) or not last < node_id < len(tensors):
            raise GraphError(f"node id {node_id!r} is not after {last} and below {len(tensors)}")
        last = node_id
        nodes.append(tensors[node_id])
    if any(tensor.op is None for tensor in nodes):
        raise GraphError("a leaf is listed as a node")
    return nodes


def decode_tensor(fields: Any, earlier: Sequence[Tensor], resolve: Resolve) -> Tensor:
    """Build one tensor of its record; `earlier` are the tensors its ids may name. Raises as `decode_graph`."""
    kind, ne, nb, op, params, sources, view, view_offs, handle, offset, name = _fields(fields, 11, "a tensor record")
    for value in (kind, op, view, view_offs, handle, offset):
        if not isinstance(value, int) or isinstance(value, bool):
            raise GraphError(f"a tensor record holds {value!r} where a number belongs")
    if not isinstance(name, str) or not isinstance(params, bytes) or len(params) not in (0, OP_PARAMS_NBYTES):
        raise GraphError("a tensor record has a malformed name or op parameters")
    tensor = Tensor(
        element_type(kind),
        _numbers(ne, MAX_DIMS),
        nb=_numbers(nb, MAX_DIMS),
        op=None if op == -1 else op_of_code(op),
        op_params=params or bytes(OP_PARAMS_NBYTES),
        sources=[_reference(source, earlier) for source in _numbers(sources, None)],
        view_src=None if view == -1 else _reference(view, earlier),
        view_offs=view_offs,
        name=name,
    )
    if handle:
        tensor.buffer, tensor.offset = resolve(handle), offset
    return tensor


def graph_digest(record: list[Any]) -> bytes:
    """Return the 16-byte content digest of a graph record: equal records, equal digests."""
    packed = msgpack.packb(record)
    assert packed is not None, "packb returns None only for a packer of one's own"
    return hashlib.blake2b(packed, digest_size=16).digest()


def _fields(value: Any, count: int, what: str) -> Any:
    if not isinstance(value, list | tuple) or len(value) != count:
        raise GraphError(f"{what} is not a list of {count} fields")
    return value


def _numbers(values: Any, count: int | None) -> list[int]:
    good = isinstance(values, list | tuple) and len(values) == (len(values) if count is None else count)
    if not good or not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        raise GraphError(f"{values!r} is not a list of whole numbers of the right length")
    if len(values) > MAX_SOURCES:
        raise GraphError(f"{len(values)} sources are more than {MAX_SOURCES}")
    return list(values)


def _reference(index: int, earlier: Sequence[Tensor]) -> Tensor:
    if not 0 <= index < len(earlier):
        raise GraphError(f"a tensor refers to tensor {index}, which is not before it")
    return earlier[index]
