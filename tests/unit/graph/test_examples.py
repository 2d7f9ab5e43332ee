"""Examples of operations: all of them, each one valid."""

from __future__ import annotations

from types import SimpleNamespace

from rpc_backend.graph import OPS, Glu, Graph, Unary, check_graph
from rpc_backend.graph.examples import examples


def test_every_operation_and_function_has_an_example():
    found = examples()
    assert list(found) == list(OPS)
    assert all(found.values())
    assert set(found["UNARY"]) == {function.name for function in Unary}
    assert set(found["GLU"]) == {function.name for function in Glu}


def test_every_example_passes_the_checks_once_it_has_memory():
    for forms in examples().values():
        for node in forms.values():
            graph = Graph.of(node)
            for tensor in graph.tensors():
                if tensor.view_src is None:
                    tensor.buffer = SimpleNamespace(nbytes=tensor.nbytes)
            check_graph(graph)
