"""Checks of graphs from outside: what must not reach a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc_backend.errors import GraphError
from rpc_backend.graph import Graph, RopeMode, Tensor, build, check_graph, check_node, check_tensor, extent_nbytes
from rpc_backend.graph.element_types import F16, F32, I32, I64, Q4_K, Q8_0


@dataclass
class _Memory:
    nbytes: int = 4096


def _placed(tensor: Tensor, nbytes: int = 4096, offset: int = 0) -> Tensor:
    tensor.buffer, tensor.offset = _Memory(nbytes), offset
    return tensor


def _leaf(kind=F32, ne=(4, 3), nb=None, nbytes=4096, offset=0) -> Tensor:
    return _placed(Tensor(kind, ne, nb=nb, name="bad"), nbytes, offset)


def test_good_tensors_pass():
    check_tensor(_leaf(nbytes=48))
    check_tensor(_leaf(nbytes=64, offset=16))
    check_tensor(_leaf(Q8_0, (64, 3), (34, 100, 300, 300)))
    check_tensor(_leaf(F32, (4, 0), nbytes=0))
    check_tensor(_leaf(F16, (3, 1, 1), (2, 7, 9, 11)))
    check_tensor(build.transpose(_leaf()))


_BAD_TENSORS = {
    "no memory": (Tensor(F32, (4,)), "has no memory"),
    "one byte too long": (_leaf(nbytes=47), r"48 bytes at 0 reaches outside its buffer of 47"),
    "offset": (_leaf(nbytes=64, offset=20), r"48 bytes at 20 reaches outside its buffer of 64"),
    "negative offset": (_leaf(offset=-4), "at -4 reaches outside"),
    "offset that overflows 64 bits": (_leaf(offset=2**64 - 16), "reaches outside"),
    "offset 2^63": (_leaf(offset=2**63), "reaches outside"),
    "stride over the end": (_leaf(nb=(4, 4096, 4096, 4096)), "reaches outside"),
    "negative stride": (_leaf(nb=(4, -16, 48, 48)), "out of range"),
    "cancelling strides": (_leaf(ne=(4, 3, 3), nb=(4, 2**62 * 2, -(2**62) * 2, 4)), "out of range"),
    "strides that sum to 0 in 64 bits": (_leaf(ne=(5, 5), nb=(2**62, 2**62, 4, 4)), "spans more than"),
    "stride 2^63": (_leaf(nb=(4, 2**63, 16, 16)), "out of range"),
    "huge stride of a single extent": (_leaf(ne=(4, 1), nb=(4, 2**63, 16, 16)), "out of range"),
    "extent 2^63": (_leaf(ne=(2**63,), nb=(4, 4, 4, 4)), "out of range"),
    "extents whose product overflows": (_leaf(ne=(2**32, 2**32), nb=(0, 0, 4, 4)), "overlap"),
    "endless elements in 4 bytes": (_leaf(ne=(2**60,), nb=(0, 0, 0, 0)), "overlap"),
    "overlapping rows": (_leaf(ne=(4, 100), nb=(4, 4, 4, 4)), "overlap"),
    "half a block": (_leaf(Q8_0, (48,), (34, 68, 68, 68)), "no whole blocks of 32"),
    "unpacked blocks": (_leaf(Q8_0, (64, 2), (68, 136, 272, 272)), "must be packed"),
    "transposed blocks": (_leaf(Q4_K, (256, 2), (288, 144, 288, 288)), "must be packed"),
    "odd offset": (_leaf(offset=2), "not multiples of 4"),
    "odd stride": (_leaf(nb=(4, 18, 54, 54)), "not multiples of 4"),
    "odd half stride": (_leaf(F16, (4, 3), (2, 9, 27, 27)), "not multiples of 2"),
    "odd block stride": (_leaf(Q8_0, (32, 2), (34, 35, 70, 70)), "not multiples of 2"),
}


@pytest.mark.parametrize(("tensor", "message"), _BAD_TENSORS.values(), ids=_BAD_TENSORS)
def test_bad_tensors_are_refused(tensor, message):
    with pytest.raises(GraphError, match=message):
        check_tensor(tensor)


def _view(source: Tensor, ne, nb, offs=0) -> Tensor:
    return Tensor(source.type, ne, nb=nb, view_src=source, view_offs=offs, name="view")


def test_views_must_lie_inside_their_source():
    source = _leaf()
    check_tensor(_view(source, (4, 3), (4, 16, 48, 48)))
    check_tensor(_view(source, (2, 2), (4, 32, 64, 64), 8))
    for ne, nb, offs in (
        ((4, 3), (4, 16, 48, 48), 4), ((4, 4), (4, 16, 64, 64), 0), ((4,), (4, 16, 16, 16), -4),
        ((4,), (4, 16, 16, 16), 2**64), ((2, 2), (4, 48, 96, 96), 0), ((4,), (4, 16, 16, 16), 2**63 - 1),
    ):  # fmt: skip
        with pytest.raises(GraphError, match="reaches outside <leaf bad"):
            check_tensor(_view(source, ne, nb, offs))
    with pytest.raises(GraphError, match="not multiples of 4"):
        check_tensor(_view(source, (2,), (4, 8, 8, 8), 2))
    with pytest.raises(GraphError, match="overlap"):
        check_tensor(_view(source, (4, 2**40), (4, 0, 0, 0)))


def test_a_view_may_repeat_what_its_source_has_room_for():
    check_tensor(_view(_leaf(ne=(4, 3)), (4, 3), (4, 0, 0, 0)))


def test_a_view_of_a_view_is_refused_however_long_the_chain():
    tensor = _leaf()
    for _ in range(5000):
        tensor = _view(tensor, (4, 3), (4, 16, 48, 48))
    with pytest.raises(GraphError, match="is a view of a view"):
        check_tensor(tensor)


def test_a_view_of_something_not_placed_is_refused():
    view = build.view(Tensor(F32, (8,)), (4,))
    with pytest.raises(GraphError, match="has no memory"):
        check_graph(Graph([_placed(build.scale(view, 1.0))]))


_small = st.integers(-3, 40)


@given(
    st.sampled_from([F32, F16, Q8_0, I64]), st.tuples(*[st.integers(0, 5)] * 4), st.tuples(*[_small] * 4),
    st.integers(-10, 300),
)  # fmt: skip
def test_a_tensor_that_passes_has_every_byte_inside(kind, counts, strides, offset):
    ne = (counts[0] * kind.block_size, *counts[1:])
    nb = (kind.block_nbytes, *(stride * 2 for stride in strides[1:]))
    tensor = _placed(Tensor(kind, ne, nb=nb), 256, offset)
    try:
        check_tensor(tensor)
    except GraphError:
        return
    for i3 in range(ne[3]):
        for i2 in range(ne[2]):
            for i1 in range(ne[1]):
                first = offset + i1 * nb[1] + i2 * nb[2] + i3 * nb[3]
                if ne[0]:
                    assert first >= 0
                    assert first + kind.row_nbytes(ne[0]) <= 256
    assert tensor.n_elements == 0 or extent_nbytes(kind, tensor.ne, tensor.nb) <= 256


def _node(result: Tensor) -> Tensor:
    for tensor in Graph.of(result).tensors():
        if tensor.view_src is None:
            _placed(tensor)
    return result


def test_good_graphs_pass():
    a, ids = build.leaf(F32, (8, 3), "a"), build.leaf(I32, (3,), "ids")
    rope = build.rope(build.reshape(a, (4, 2, 3)), ids, n_dims=4, mode=RopeMode.NEOX)
    check_graph(Graph.of(_node(build.mul_mat(a, build.cont(build.reshape(rope, (8, 3)))))))


def test_a_leaf_is_no_node():
    with pytest.raises(GraphError, match="has no operation"):
        check_node(_leaf())


def _with(result: Tensor, **changes) -> Tensor:
    for name, value in changes.items():
        setattr(result, name, value)
    return _node(result)


_A = build.leaf(F32, (8, 3), "a")
_BAD_NODES = {
    "no sources": (_with(build.add(_A, _A), sources=()), "0 sources, ADD takes 2 to 2"),
    "too many sources": (_with(build.add(_A, _A), sources=(_A, _A, _A)), "3 sources, ADD takes 2 to 2"),
    "wrong shape": (_with(build.add(_A, _A), ne=(8, 4, 1, 1)), r"ADD of these sources gives F32 \[8, 3, 1, 1\]"),
    "wrong type": (_with(build.sum_rows(_A), type=I32), "SUM_ROWS of these sources gives F32"),
    "larger product": (_with(build.mul_mat(_A, _A), ne=(3, 300, 1, 1)), "MUL_MAT of these sources gives"),
    "wrong parameters": (
        _with(build.concat(_A, _A, 1), op_params=b"\xff" * 64), r"CONCAT .*concat axis -1 is not one",
    ),
    "sources that do not fit": (
        _with(build.add(_A, _A), sources=(_A, build.leaf(F32, (5,)))), "does not repeat into",
    ),
    "a view that is none": (_with(build.reshape(_A, (24,)), view_src=None), "must be a view of its source"),
}  # fmt: skip


@pytest.mark.parametrize(("node", "message"), _BAD_NODES.values(), ids=_BAD_NODES)
def test_bad_nodes_are_refused(node, message):
    with pytest.raises(GraphError, match=message):
        check_node(node)


def test_check_graph_checks_tensors_and_nodes():
    node = _node(build.add(_A, _A))
    node.ne = (8, 4, 1, 1)
    with pytest.raises(GraphError, match="gives F32"):
        check_graph(Graph([node]))
    node = _node(build.add(build.leaf(F32, (4,)), build.leaf(F32, (4,))))
    node.sources[1].offset = 4090
    with pytest.raises(GraphError, match="reaches outside its buffer"):
        check_graph(Graph([node]))
