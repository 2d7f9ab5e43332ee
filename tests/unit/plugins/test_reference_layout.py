"""Copies, conversions and joins of the reference backend."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.graph import Tensor, build, element_type
from rpc_backend.graph.element_types import BF16, F16, F32, I8, I32, Q4_K, Q8_0
from rpc_backend_reference.device import ReferenceDevice

_CUBE = np.arange(24, dtype="f4").reshape(2, 3, 4)


def _leaf(kind, ne) -> Tensor:
    tensor = build.leaf(kind, ne)
    tensor.buffer = ReferenceDevice().alloc_buffer(tensor.nbytes)
    return tensor


def test_cont_packs_in_logical_order(compute):
    assert np.array_equal(compute(lambda a: build.cont(build.transpose(a)), _CUBE), _CUBE.swapaxes(1, 2))
    permuted = compute(lambda a: build.dup(build.permute(a, 2, 0, 1, 3)), _CUBE)
    assert permuted.shape == (4, 2, 3)
    assert all(permuted[i0, i2, i1] == _CUBE[i2, i1, i0] for i2, i1, i0 in np.ndindex(2, 3, 4))


def test_a_copy_may_change_shape_and_type(compute):
    result = compute(build.cpy, _CUBE, _leaf(F16, (8, 3)))
    assert np.array_equal(result, _CUBE.reshape(3, 8))
    result = compute(lambda a, b: build.cpy(build.transpose(a), b), _CUBE, _leaf(F32, (24,)))
    assert np.array_equal(result, _CUBE.swapaxes(1, 2).reshape(-1))


def test_a_copy_into_a_window_leaves_the_rest(compute):
    target = _leaf(F32, (5, 2))
    compute(lambda a: build.cpy(a, build.view(target, (2, 2), target.nb, 4)), [[1.0, 2.0], [3.0, 4.0]])
    assert target.buffer.bytes.view("<f4").tolist() == [0, 1, 2, 0, 0, 0, 3, 4, 0, 0]


def test_a_copy_over_itself_is_as_if_read_first(compute):
    def shift(a):
        return build.cpy(build.view(a, (5,)), build.view(a, (5,), offset_bytes=4))

    assert compute(shift, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).tolist() == [0, 1, 2, 3, 4]


def test_to_blocks_and_back(compute):
    values = np.linspace(-1, 1, 128, dtype="f4").reshape(2, 64)
    blocks = _leaf(Q8_0, (64, 2))
    compute(build.cpy, values, blocks)
    back = compute(build.cpy, blocks, _leaf(F32, (64, 2)))
    assert np.max(np.abs(back - values)) <= 0.5 / 127 + 1e-3
    assert compute(build.cpy, np.array([1.9, -1.9], "f4"), _leaf(I32, (2,))).tolist() == [1, -1]
    assert compute(build.cpy, np.array([3, -4], "i4"), _leaf(F32, (2,))).tolist() == [3.0, -4.0]


def test_joins(compute):
    other = -_CUBE[:1]
    assert np.array_equal(
        compute(lambda a, b: build.concat(a, b, 2), _CUBE, other), np.concatenate([_CUBE, other])
    )  # fmt: skip
    row = compute(lambda a, b: build.concat(a, b, 0), [[1.0], [2.0]], [[3.0, 4.0], [5.0, 6.0]])
    assert row.tolist() == [[1, 3, 4], [2, 5, 6]]
    assert compute(lambda a: build.repeat(a, (4, 2, 1, 1)), [1.0, 2.0]).tolist() == [[1, 2, 1, 2], [1, 2, 1, 2]]


_K = (256,)


@pytest.mark.parametrize(
    ("source", "target", "supported"),
    [
        (F32, F16, True), (BF16, F16, True), (F16, BF16, True), (F32, I32, True), (I32, F32, True), (I8, I8, True),
        (Q4_K, Q4_K, True), (Q4_K, F32, True), (F16, Q8_0, True), (BF16, element_type("Q5_1"), True),
        (F32, Q4_K, False), (F32, element_type("IQ4_NL"), False), (Q4_K, F16, False), (Q8_0, Q4_K, False),
        (F16, I32, False), (I32, F16, False), (I8, F32, False), (F32, I8, False),
    ],
)  # fmt: skip
def test_which_conversions_are_supported(compute, source, target, supported):
    node = build.cpy(_leaf(source, _K), _leaf(target, _K))
    assert ReferenceDevice().supports_op(node) is supported
    if supported:
        assert compute(lambda: node).shape == _K
