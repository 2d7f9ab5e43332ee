"""Our graphs as ggml-rpc tells them: what goes out is what comes back in."""

from __future__ import annotations

import pytest

from rpc_backend.errors import GraphError
from rpc_backend.graph import Graph, Tensor, build, check_graph, decode_graph, element_type
from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_transport_ggml.outgoing import graph_of, question_of, tensor_of
from rpc_transport_ggml.places import Places, Region
from rpc_transport_ggml.translate import graph_record, question_record
from rpc_transport_ggml.wire import decode_graph as decode_bytes
from rpc_transport_ggml.wire import encode_graph

F32 = element_type("F32")
BASE, HANDLE, NBYTES = 1 << 20, 3, 1 << 16


def place_of(tensor: Tensor) -> tuple[int, int]:
    _, offset = tensor.location()
    return HANDLE, BASE + offset


def placed(*tensors: Tensor) -> None:
    buffer = HostBuffer(NullDevice(), NBYTES)
    for n, tensor in enumerate(tensors):
        tensor.buffer, tensor.offset = buffer, 1024 * n


def test_a_graph_survives_both_translations():
    a, b = build.leaf(F32, [8, 4], "a"), build.leaf(F32, [8, 4], "b")
    total = build.add(a, build.scale(b, 2.0, 1.0))
    part = build.view(total, [4, 4], (4, 32, 128, 128), 16)
    last = build.cont(build.transpose(part))
    placed(a, b, total.sources[1], total, last)
    sent = encode_graph(0, graph_of(Graph.of(last), place_of))

    places = Places()
    places.add(Region(HANDLE, 0, BASE, NBYTES))
    buffer = HostBuffer(NullDevice(), NBYTES)
    graph = decode_graph(graph_record(decode_bytes(memoryview(sent)), places), lambda handle: buffer)

    check_graph(graph)
    assert [node.op.name for node in graph.nodes if node.op] == ["SCALE", "ADD", "CONT"]
    scale, add, cont = graph.nodes
    assert scale.params == {"scale": 2.0, "bias": 1.0}
    assert add.sources[1] is scale
    assert cont.sources[0].location()[1] == total.offset + 16
    assert (cont.sources[0].ne, cont.sources[0].nb) == ((4, 4, 1, 1), (32, 4, 128, 128))


def test_a_question_survives_both_translations():
    node = build.mul_mat(build.leaf(element_type("Q8_0"), [64, 3]), build.leaf(F32, [64, 2]))
    question, *sources = question_of(node)
    assert len(sources) == 10
    records, ids = question_record(question, sources)
    assert ids == [2]
    assert [record[0] for record in records] == [8, 0, 0]


def test_a_stride_that_the_wire_would_cut():
    large = build.leaf(F32, [1 << 20, 1 << 11])
    with pytest.raises(GraphError, match="32 bits only"):
        tensor_of(large, lambda tensor: (0, 0))
