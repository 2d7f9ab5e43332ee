"""Order, records, digest: what goes out comes back, and what is malformed is refused."""

from __future__ import annotations

import copy
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc_backend.errors import GraphError, HandleError
from rpc_backend.graph import Graph, Unary, build, decode_graph, encode_graph, graph_digest
from rpc_backend.graph.element_types import F16, F32, I64, Q8_0

_HANDLES = {7: "memory"}


def _resolve(handle: int) -> str:
    if handle not in _HANDLES:
        raise HandleError(f"no buffer {handle}")
    return _HANDLES[handle]


def _place(tensor):
    return (7, tensor.offset) if tensor.buffer else (0, 0)


def _attention_graph() -> Graph:
    x, weight, rows = build.leaf(F32, (64, 5), "x"), build.leaf(Q8_0, (64, 32), "w"), build.leaf(I64, (5,))
    cache = build.leaf(F16, (32, 40), "cache")
    keys = build.mul_mat(weight, x)
    written = build.set_rows(cache, keys, rows)
    window = build.permute(build.view(cache, (8, 4, 24), (2, 16, 64, 64 * 24), 64), 0, 2, 1, 3)
    return Graph.of(written, build.cont(window))


def _record() -> list[Any]:
    a, b = build.leaf(F32, (4, 3), "a"), build.leaf(F32, (4,), "b")
    return encode_graph(Graph.of(build.scale(build.add(a, b), 2.0)), lambda tensor: (7, 0))


def test_order_is_depth_first_from_left_to_right():
    a, b = build.leaf(F32, (4,)), build.leaf(F32, (4,))
    first, second = build.scale(a, 1.0), build.scale(b, 2.0)
    both = build.add(first, second)
    assert Graph.of(both).nodes == (first, second, both)
    assert Graph.of(second, both).nodes == (second, first, both)
    assert Graph.of(a).nodes == ()
    assert build.cont(a) not in Graph.of(both).nodes


def test_a_shared_source_comes_once_and_deep_graphs_do_not_recurse():
    tensor = build.leaf(F32, (4,))
    for _ in range(5000):
        tensor = build.add(tensor, tensor)
    assert len(Graph.of(tensor).nodes) == 5000


def test_tensors_lists_each_after_what_it_refers_to():
    graph = _attention_graph()
    tensors = graph.tensors()
    place = {tensor: index for index, tensor in enumerate(tensors)}
    assert len(place) == len(tensors)
    for node in graph.nodes:
        assert all(place[parent] < place[node] for parent in (*node.sources, node.view_src) if parent is not None)


def test_what_no_node_computes_is_a_leaf_with_its_root():
    a = build.leaf(F32, (4, 3), "a")
    outside = build.view(build.scale(a, 2.0), (4, 2))
    graph = Graph([build.unary(Unary.NEG, outside)])
    assert graph.tensors() == [outside.view_src, outside, graph.nodes[0]]
    copied = decode_graph(encode_graph(graph, lambda tensor: (7, 0)), _resolve)
    root, view, node = copied.tensors()
    assert (root.op, view.op) == (None, None)
    assert view.view_src is root
    assert node.sources == (view,)


def _same(ours, theirs) -> bool:
    fields = ("type", "ne", "nb", "op", "op_params", "view_offs", "name")
    return all(getattr(ours, field) == getattr(theirs, field) for field in fields)


def test_a_record_survives_the_wire():
    graph = _attention_graph()
    for offset, tensor in enumerate(graph.tensors()):
        if tensor.view_src is None:
            tensor.buffer, tensor.offset = "memory", 1000 * offset
    record = msgpack.unpackb(msgpack.packb(encode_graph(graph, _place)))
    copied = decode_graph(record, _resolve)
    assert all(map(_same, graph.tensors(), copied.tensors()))
    assert [tensor.location() for tensor in copied.tensors()] == [tensor.location() for tensor in graph.tensors()]
    assert encode_graph(copied, _place) == record


_extents = st.tuples(st.integers(1, 2**40), *[st.integers(1, 30)] * 3).flatmap(st.permutations).map(tuple)
_numbers = st.integers(0, 2**63)


@given(_extents, st.tuples(*[_numbers] * 4), _numbers, st.text(max_size=20), st.floats(width=32, allow_nan=False))
def test_any_numbers_survive_the_wire(ne, nb, offset, name, factor):
    a = build.leaf(F32, (1,), name)
    a.ne, a.nb, a.buffer, a.offset = ne, nb, "memory", offset
    graph = Graph([build.scale(a, factor)])
    record = msgpack.unpackb(msgpack.packb(encode_graph(graph, _place)))
    copied = decode_graph(record, _resolve)
    leaf = copied.nodes[0].sources[0]
    assert (leaf.ne, leaf.nb, leaf.offset, leaf.name) == (ne, nb, offset, name)
    assert copied.nodes[0].params["scale"] == factor
    assert graph_digest(encode_graph(copied, _place)) == graph_digest(record)


@pytest.mark.parametrize("stride", [2**32 - 1, 2**32, 2**32 + 4])
def test_sizes_around_32_bits_are_kept(stride):
    a = build.leaf(F32, (stride, 2))
    a.nb = (4, stride, 2 * stride, 2 * stride)
    copied = decode_graph(encode_graph(Graph([build.cont(a)]), _place), _resolve)
    assert copied.nodes[0].sources[0].ne[0] == stride
    assert copied.nodes[0].sources[0].nb[1] == stride


_TYPE, _NE, _NB, _OP, _PARAMS, _SOURCES, _VIEW, _VIEW_OFFS, _HANDLE, _OFFSET, _NAME = range(11)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (_TYPE, 1), (_NE, [4, 3, 2, 1]), (_NB, [4, 32, 96, 96]), (_PARAMS, bytes([1] * 64)), (_OFFSET, 64),
        (_HANDLE, 8), (_NAME, "other"), (_VIEW_OFFS, 4), (_SOURCES, [0]), (_OP, 7),
    ],
)  # fmt: skip
def test_the_digest_depends_on_every_field(field, value):
    record, changed = _record(), _record()
    changed[0][-1][field] = value
    assert graph_digest(record) == graph_digest(_record())
    assert len(graph_digest(record)) == 16
    assert graph_digest(changed) != graph_digest(record)


def test_the_digest_depends_on_the_nodes():
    record, changed = _record(), _record()
    changed[1] = changed[1][:1]
    assert graph_digest(changed) != graph_digest(record)


_BAD_FIELDS = {
    "unknown element type": (_TYPE, 4, "unknown element type 4"),
    "huge element type": (_TYPE, 2**63, "unknown element type"),
    "text as element type": (_TYPE, "F32", "where a number belongs"),
    "bool as element type": (_TYPE, True, "where a number belongs"),
    "three extents": (_NE, [4, 3, 1], "right length"),
    "five extents": (_NE, [4, 3, 1, 1, 1], "right length"),
    "float extent": (_NE, [4.0, 3, 1, 1], "whole numbers"),
    "negative extent": (_NE, [4, -3, 1, 1], "negative extent"),
    "extents as bytes": (_NE, b"\x04\x03\x01\x01", "right length"),
    "no extents": (_NE, None, "right length"),
    "three strides": (_NB, [4, 16, 48], "right length"),
    "nested strides": (_NB, [[4], 16, 48, 48], "whole numbers"),
    "unknown operation": (_OP, 23, "unknown operation number 23"),
    "negative operation": (_OP, -2, "unknown operation number -2"),
    "no operation": (_OP, None, "where a number belongs"),
    "short parameters": (_PARAMS, bytes(63), "malformed name or op parameters"),
    "long parameters": (_PARAMS, bytes(65), "malformed name or op parameters"),
    "parameters as text": (_PARAMS, "x" * 64, "malformed name or op parameters"),
    "itself as source": (_SOURCES, [2], "tensor 2, which is not before it"),
    "a later source": (_SOURCES, [3], "tensor 3, which is not before it"),
    "a negative source": (_SOURCES, [-1], "tensor -1, which is not before it"),
    "a huge source": (_SOURCES, [2**63], "which is not before it"),
    "eleven sources": (_SOURCES, [0] * 11, "11 sources are more than 10"),
    "itself as view": (_VIEW, 2, "tensor 2, which is not before it"),
    "a negative view": (_VIEW, -2, "tensor -2, which is not before it"),
    "float view offset": (_VIEW_OFFS, 0.5, "where a number belongs"),
    "no handle": (_HANDLE, None, "where a number belongs"),
    "text as offset": (_OFFSET, "0", "where a number belongs"),
    "bytes as name": (_NAME, b"x", "malformed name"),
}


@pytest.mark.parametrize(("field", "value", "message"), _BAD_FIELDS.values(), ids=_BAD_FIELDS)
def test_a_malformed_tensor_is_refused(field, value, message):
    record = _record()
    assert record[0][2][_OP] == 2
    record[0][2][field] = value
    with pytest.raises(GraphError, match=message):
        decode_graph(record, _resolve)


def test_an_unknown_handle_is_the_error_of_the_resolver():
    record = _record()
    record[0][0][_HANDLE] = 99
    with pytest.raises(HandleError, match="no buffer 99"):
        decode_graph(record, _resolve)


@pytest.mark.parametrize("node_ids", [[3, 2], [2, 2], [9], [-1], [2**63], ["2"], [2.0], [None], [0]])
def test_malformed_node_lists_are_refused(node_ids):
    record = _record()
    with pytest.raises(GraphError):
        decode_graph([record[0], node_ids], _resolve)


@pytest.mark.parametrize("record", [None, 1, "ab", b"ab", {}, [], [[]], [[], [], []], [1, 2], [[], None], [[1], []]])
def test_what_is_no_graph_record_is_refused(record):
    with pytest.raises(GraphError):
        decode_graph(record, _resolve)


_scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
_anything = st.recursive(_scalars, lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(), inner))


@given(st.integers(0, 3), st.integers(0, 10), _anything)
def test_any_value_in_any_field_is_taken_or_refused(tensor, field, value):
    record = copy.deepcopy(_record())
    record[0][tensor][field] = value
    try:
        graph = decode_graph(record, _resolve)
    except (GraphError, HandleError):
        return
    assert len(graph.nodes) == 2
