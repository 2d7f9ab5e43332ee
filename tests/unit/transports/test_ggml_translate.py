"""ggml-rpc's graphs as the worker's records: places, order, and what is refused before the worker sees it."""

from __future__ import annotations

import re
import struct

import pytest

from rpc_backend.errors import GraphError, UnsupportedOpError
from rpc_backend.graph import OPS, check_graph, check_tensor, decode_graph, decode_tensor, element_type, packed_strides
from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_transport_ggml.places import Places, Region
from rpc_transport_ggml.translate import graph_record, question_record, tensor_record
from rpc_transport_ggml.wire import FLAG_COMPUTE, GraphRecord, TensorRecord

BASE, NBYTES, HANDLE = 1 << 20, 1 << 16, 5
F32 = element_type("F32")


@pytest.fixture
def places() -> Places:
    made = Places()
    made.add(Region(HANDLE, 0, BASE, NBYTES))
    return made


def tensor(id: int, op: str | int = "", sources: tuple[int, ...] = (), *, ne=(8, 1, 1, 1), at: int = 0, **changes):
    kind = element_type(changes.pop("kind", "F32"))
    fields = {
        "id": id,
        "type": kind.code,
        "buffer": HANDLE,
        "ne": ne,
        "nb": packed_strides(kind, ne),
        "op": op if isinstance(op, int) else OPS[op].code if op else 0,
        "op_params": bytes(64),
        "flags": FLAG_COMPUTE,
        "sources": (*sources, *(0,) * (10 - len(sources))),
        "view_source": 0,
        "view_offset": 0,
        "data": BASE + at,
        "raw_name": f"t{id}".encode(),
    }
    return TensorRecord(**{**fields, **changes})


def graph_of(record):
    buffer = HostBuffer(NullDevice(), NBYTES)
    graph = decode_graph(record, lambda handle: buffer)
    check_graph(graph)
    return graph


def test_a_tensor_is_told_by_its_place(places):
    record, device, nbytes = tensor_record(tensor(1, at=64), places)
    assert (device, nbytes) == (0, 32)
    buffer = HostBuffer(NullDevice(), NBYTES)
    decoded = decode_tensor(record, [], lambda handle: buffer if handle == HANDLE else None)
    check_tensor(decoded)
    assert (decoded.name, decoded.ne, decoded.location()) == ("t1", (8, 1, 1, 1), (buffer, 64))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"buffer": 0}, "in no buffer of this server"),
        ({"buffer": 6}, "0x6 is not one of this connection's"),
        ({"buffer": 2**64 - 1}, "not one of this connection's"),
        ({"data": BASE - 1}, "outside its buffer"),
        ({"data": 0}, "outside its buffer"),
        ({"data": BASE + NBYTES + 1}, "outside its buffer"),
        ({"data": 2**64 - 1}, "outside its buffer"),
        ({"type": 39}, "MXFP4"),
        ({"type": 2**32 - 1}, f"type {2**32 - 1}"),
    ],
)
def test_a_tensor_that_has_no_place_or_type(places, changes, told):
    with pytest.raises(GraphError, match=re.escape(told)):
        tensor_record(tensor(1, **changes), places)


def test_a_freed_buffer_is_no_place(places):
    places.remove(HANDLE)
    with pytest.raises(GraphError, match="was freed"):
        tensor_record(tensor(1), places)


def test_a_graph_becomes_ours(places):
    nodes = [tensor(3, "ADD", (1, 2), at=64), tensor(4, "MUL", (3, 1), at=96)]
    record = graph_record(GraphRecord((3, 4), [tensor(1), tensor(2, at=32), *nodes]), places)
    add, mul = graph_of(record).nodes
    assert [node.op.name for node in (add, mul) if node.op] == ["ADD", "MUL"]
    assert mul.sources[0] is add
    assert mul.sources[1] is add.sources[0]
    assert [source.location()[1] for source in add.sources] == [0, 32]


def test_views_are_leaves_at_their_own_place(places):
    view = tensor(2, "VIEW", (1,), ne=(4, 1, 1, 1), at=16, view_source=1, view_offset=16)
    leaf, node = tensor(1), tensor(3, "ADD", (2, 2), ne=(4, 1, 1, 1), at=64)
    graph = graph_of(graph_record(GraphRecord((2, 3), [leaf, view, node]), places))
    (add,) = graph.nodes
    assert add.sources[0] is add.sources[1]
    assert add.sources[0].op is None
    assert add.sources[0].location()[1] == 16


def test_a_view_elsewhere_is_no_matter_unless_it_is_used(places):
    away = tensor(2, "VIEW", (1,), buffer=0, data=0, view_source=1)
    assert graph_record(GraphRecord((2,), [tensor(1), away]), places) == [[], []]
    with pytest.raises(GraphError, match="in no buffer"):
        graph_record(GraphRecord((2, 3), [tensor(1), away, tensor(3, "ADD", (1, 2), at=64)]), places)


def test_nodes_that_are_not_to_be_computed_are_not(places):
    idle = tensor(2, "ADD", (1, 1), at=32, flags=0)
    assert graph_record(GraphRecord((2,), [tensor(1), idle]), places) == [[], []]


def test_writing_over_a_tensor(places):
    values, rows, target = tensor(1), tensor(2, kind="I32", ne=(1, 1, 1, 1), at=64), tensor(3, ne=(8, 4, 1, 1), at=128)
    node = tensor(4, "SET_ROWS", (1, 2, 3), ne=(8, 4, 1, 1), at=128, view_source=3)
    (decoded,) = graph_of(graph_record(GraphRecord((4,), [values, rows, target, node]), places)).nodes
    assert decoded.location() == decoded.sources[2].location()


def test_parameters_are_kept(places):
    params = struct.pack("<ff", 0.5, 1.0).ljust(64, b"\0")
    node = tensor(2, "SCALE", (1,), at=32, op_params=params)
    (decoded,) = graph_of(graph_record(GraphRecord((2,), [tensor(1), node]), places)).nodes
    assert decoded.params == {"scale": 0.5, "bias": 1.0}


@pytest.mark.parametrize(
    ("node_ids", "tensors", "told"),
    [
        ((9,), [tensor(1)], "mentions tensor 0x9"),
        ((0,), [tensor(1)], "mentions tensor 0x0"),
        ((2,), [tensor(2, "ADD", (8, 8))], "'t2' mentions tensor 0x8"),
        ((1,), [tensor(1), tensor(1)], "two tensors under one id"),
        ((0,), [tensor(0)], "one under 0"),
        ((2, 2), [tensor(1), tensor(2, "ADD", (1, 1))], "one node twice"),
        ((2,), [tensor(2, "ADD", (2, 2))], "'t2' needs 't2'"),
        ((2, 3), [tensor(2, "ADD", (3, 3)), tensor(3, "ADD", (2, 2))], "'t2' needs 't3'"),
    ],
)
def test_ids_that_lead_nowhere_or_round_in_circles(places, node_ids, tensors, told):
    with pytest.raises(GraphError, match=re.escape(told)):
        graph_record(GraphRecord(node_ids, tensors), places)


@pytest.mark.parametrize(("op", "name"), [(23, "SILU_BACK"), (95, "CUSTOM"), (101, "operation 101"), (2**32 - 1, "op")])
def test_an_operation_that_is_not_known_is_named_with_shape_and_type(places, op, name):
    node = tensor(2, op, (1,), at=32)
    with pytest.raises(UnsupportedOpError, match=rf"{name}.* 't2' F32 \[8, 1, 1, 1\] is not supported"):
        graph_record(GraphRecord((2,), [tensor(1), node]), places)
    with pytest.raises(UnsupportedOpError, match=name):
        question_record(node, [tensor(1)])


def test_a_source_that_is_left_out(places):
    node = tensor(2, "SOFT_MAX", (1, 0, 1), at=32)
    with pytest.raises(UnsupportedOpError, match=r"SOFT_MAX 't2' .* leaves out source 1"):
        graph_record(GraphRecord((2,), [tensor(1), node]), places)


@pytest.mark.parametrize("ne", [(1 << 20, 1 << 10, 2, 1), (1 << 16, 1 << 8, 1 << 8, 2)])
def test_a_stride_that_the_wire_cuts(places, ne):
    whole = packed_strides(F32, ne)
    cut = tuple(stride % (1 << 32) for stride in whole)
    with pytest.raises(GraphError, match="stride of 4 GiB"):
        tensor_record(tensor(1, ne=ne, nb=cut), places)


def test_a_large_matrix_needs_no_large_stride(places):
    ne = (1 << 12, 1 << 19, 1, 1)
    cut = tuple(stride % (1 << 32) for stride in packed_strides(F32, ne))
    assert tensor_record(tensor(1, ne=ne, nb=cut), places)[0][1] == ne


def test_strides_of_a_view_of_more_than_the_wire_can_tell(places):
    root = tensor(1, ne=(1 << 20, 1 << 11, 1, 1), nb=(4, 1 << 22, 0, 0))
    view = tensor(2, "VIEW", (1,), ne=(4, 2, 1, 1), nb=(4, 64, 128, 128), view_source=1)
    node = tensor(3, "CONT", (2,), ne=(4, 2, 1, 1), at=64)
    with pytest.raises(GraphError, match=r"'t2' .* stride of 4 GiB"):
        graph_record(GraphRecord((3,), [root, view, node]), places)


def test_a_question_has_no_places():
    question = question_record(tensor(2, "ADD", (1, 3), buffer=9), [tensor(1), tensor(3), tensor(0, ne=(0, 0, 0, 0))])
    records, node_ids = question
    assert node_ids == [2]
    assert [record[8] for record in records] == [0, 0, 0]
    assert records[2][5] == [0, 1]


def test_a_question_about_a_leaf():
    records, node_ids = question_record(tensor(2, kind="Q8_0", ne=(64, 2, 1, 1)), [tensor(0)] * 10)
    assert (len(records), node_ids) == (1, [])
