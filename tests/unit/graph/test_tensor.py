"""Strides, sizes and contiguity as ggml has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc_backend.errors import GraphError
from rpc_backend.graph import Tensor, build, extent_nbytes, packed_strides
from rpc_backend.graph.element_types import ELEMENT_TYPES, F16, F32, I32, Q4_K, Q8_0


def test_strides_of_packed_tensors():
    assert Tensor(F32, (3, 5, 7, 2)).nb == (4, 12, 60, 420)
    assert Tensor(F16, (3, 5)).nb == (2, 6, 30, 30)
    assert Tensor(Q8_0, (64, 3, 2)).nb == (34, 68, 204, 408)
    assert Tensor(Q4_K, (512, 3)).nb == (144, 288, 864, 864)


def test_missing_extents_are_one():
    tensor = Tensor(F32, (5,))

    assert tensor.ne == (5, 1, 1, 1)
    assert (tensor.n_elements, tensor.n_rows, tensor.nbytes) == (5, 1, 20)


@pytest.mark.parametrize("ne", [(), (1, 1, 1, 1, 1), (-1,), (4, -2)])
def test_bad_extents_are_refused(ne):
    with pytest.raises(GraphError):
        Tensor(F32, ne)


def test_nbytes_reaches_to_the_end_of_the_last_element():
    assert Tensor(F32, (3, 5, 7, 2)).nbytes == 840
    assert Tensor(F32, (3, 5), nb=(4, 100, 500, 500)).nbytes == 4 * 100 + 12
    assert Tensor(F32, (3, 5), nb=(400, 4, 20, 20)).nbytes == 2 * 400 + 4 * 4 + 4
    assert Tensor(Q8_0, (64, 3), nb=(34, 1000, 3000, 3000)).nbytes == 68 + 2 * 1000
    assert Tensor(F32, (3, 0, 5)).nbytes == 0


def test_sizes_are_not_32_bits():
    assert extent_nbytes(F32, (2**33, 2, 1, 1), (4, 2**35, 2**36, 2**36)) == 2**36


@given(st.sampled_from(list(ELEMENT_TYPES.values())), st.tuples(*[st.integers(0, 6)] * 4))
def test_a_packed_tensor_spans_exactly_its_elements(kind, counts):
    ne = (counts[0] * kind.block_size, *counts[1:])
    tensor = Tensor(kind, ne)

    assert tensor.nbytes == tensor.n_elements // kind.block_size * kind.block_nbytes
    assert tensor.is_contiguous
    assert tensor.has_packed_rows
    assert tensor.nb == packed_strides(kind, tensor.ne)


def test_contiguity_ignores_strides_of_single_extents():
    assert Tensor(F32, (3, 1, 4), nb=(4, 999, 12, 1)).is_contiguous
    assert not Tensor(F32, (3, 2, 4), nb=(4, 999, 12, 1)).is_contiguous
    assert not Tensor(F32, (3, 5), nb=(8, 24, 120, 120)).is_contiguous
    assert Tensor(F32, (1, 5), nb=(80, 4, 20, 20)).is_contiguous
    assert Tensor(F32, (3, 0), nb=(7, 7, 7, 7)).is_contiguous


def test_transposed_and_packed_rows():
    a = build.leaf(F32, (3, 5))

    assert build.transpose(a).is_transposed
    assert not build.transpose(a).has_packed_rows
    assert not build.transpose(a).is_contiguous
    assert not a.is_transposed
    padded = build.view(build.leaf(F32, (4, 5)), (3, 5), (4, 16, 80, 80))
    assert padded.has_packed_rows
    assert not padded.is_contiguous


def test_a_view_lies_in_its_source():
    a = build.leaf(F32, (8, 4), "a")
    inner = build.view(build.view(a, (8, 2), offset_bytes=64), (4,), offset_bytes=16)
    assert inner.view_src is a
    assert inner.view_offs == 80
    assert inner.location() == (None, 80)
    a.buffer, a.offset = "somewhere", 1000
    assert inner.location() == ("somewhere", 1080)
    assert a.location() == ("somewhere", 1000)


def test_params_of_a_leaf_are_empty_and_repr_names_it():
    a = build.leaf(I32, (2,), "ids")

    assert a.params == {}
    assert repr(a) == "<leaf ids I32 [2, 1, 1, 1]>"
    assert repr(build.scale(build.leaf(F32, (2,)), 2.0)).startswith("<SCALE unnamed F32")
