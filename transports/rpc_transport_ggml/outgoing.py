"""Our graphs as ggml-rpc tells them.

Belongs here: what a tensor of ours is for the other side. Must not be here: sending it (`device`).
"""

from __future__ import annotations

from collections.abc import Callable

from rpc_backend.plugin_api import Graph, GraphError, Tensor
from rpc_transport_ggml.wire import FLAG_COMPUTE, GraphRecord, TensorRecord

_LIMIT = 1 << 32
_N_SOURCES = 10
_NONE = TensorRecord(0, 0, 0, (0, 0, 0, 0), (0, 0, 0, 0), 0, bytes(64), 0, (), 0, 0, 0, b"")

Place = Callable[[Tensor], tuple[int, int]]
"""Gives the handle and the address of a placed tensor."""


def graph_of(graph: Graph, place: Place) -> GraphRecord:
    """Return the record of a graph whose tensors are placed. Raises GraphError: a size over 32 bits."""
    tensors = graph.tensors()
    ids = {tensor: number for number, tensor in enumerate(tensors, 1)}
    computed = set(graph.nodes)
    records = [_record(tensor, ids, place, tensor in computed) for tensor in tensors]
    return GraphRecord(tuple(ids[node] for node in graph.nodes), records)


def tensor_of(tensor: Tensor, place: Place) -> TensorRecord:
    """Return the record of one placed tensor, as a leaf. Raises as `graph_of`."""
    return _record(tensor, {tensor: 1}, place, is_computed=False)


def question_of(tensor: Tensor) -> list[TensorRecord]:
    """Return the records of a question about a tensor: it, and ten sources, those that are not there empty.

    Raises as `graph_of`.
    """
    ids = {source: number for number, source in enumerate((tensor, *tensor.sources), 1)}
    sources = [_record(source, ids, _nowhere, is_computed=False) for source in tensor.sources]
    return [_record(tensor, ids, _nowhere, is_computed=True), *sources, *[_NONE] * (_N_SOURCES - len(sources))]


def _record(tensor: Tensor, ids: dict[Tensor, int], place: Place, is_computed: bool) -> TensorRecord:
    if max(*tensor.ne, *tensor.nb) >= _LIMIT:
        raise GraphError(f"{tensor} has strides {list(tensor.nb)}; ggml-rpc can tell 32 bits only")
    handle, address = place(tensor)
    op = tensor.op.code if tensor.op is not None and is_computed else 0
    return TensorRecord(
        id=ids[tensor],
        type=tensor.type.code,
        buffer=handle,
        ne=tensor.ne,
        nb=tensor.nb,
        op=op,
        op_params=tensor.op_params,
        flags=FLAG_COMPUTE if op else 0,
        sources=tuple(ids[source] for source in tensor.sources) if op else (),
        view_source=ids.get(tensor.view_src, 0) if tensor.view_src is not None else 0,
        view_offset=tensor.view_offs,
        data=address,
        raw_name=tensor.name.encode()[:63],
    )


def _nowhere(tensor: Tensor) -> tuple[int, int]:
    return 0, 0
