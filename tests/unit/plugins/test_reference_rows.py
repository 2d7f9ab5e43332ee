"""Rows by index and order of the reference backend."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.errors import ComputeError
from rpc_backend.graph import build
from rpc_backend.graph.element_types import Q8_0
from rpc_backend_reference import arrays
from rpc_backend_reference.device import ReferenceDevice

_TABLE = np.arange(12, dtype="f4").reshape(4, 3)


def _get(compute, table, rows):
    return compute(build.get_rows, table, rows)


def test_rows_are_picked_in_any_order_and_more_than_once(compute):
    assert _get(compute, _TABLE, np.array([3, 0, 3], "i4")).tolist() == [[9, 10, 11], [0, 1, 2], [9, 10, 11]]
    assert _get(compute, _TABLE.astype("f2"), np.array([1], "i8")).tolist() == [3, 4, 5]
    picked = _get(compute, _TABLE.astype("i4"), np.array([2], "i4"))
    assert (picked.dtype, picked.tolist()) == (np.dtype("i4"), [6, 7, 8])


def test_each_batch_has_indices_of_its_own(compute):
    table = np.arange(2 * 3 * 4 * 2, dtype="f4").reshape(2, 3, 4, 2)
    rows = np.array([[[0, 3], [1, 1], [2, 0]], [[3, 2], [0, 1], [1, 3]]], "i4")
    result = _get(compute, table, rows)
    for i3, i2, i1 in np.ndindex(2, 3, 2):
        assert result[i3, i2, i1].tolist() == table[i3, i2, rows[i3, i2, i1]].tolist()


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
def test_an_index_outside_names_operation_index_and_range(compute, bad):
    rows = np.array([0, bad, 1], "i4")
    with pytest.raises(ComputeError, match=rf"GET_ROWS: row index {bad} is not one of the 4 rows 0 to 3") as caught:
        _get(compute, _TABLE, rows)
    assert caught.value.context.op == "GET_ROWS"
    with pytest.raises(ComputeError, match=rf"SET_ROWS: row index {bad}"):
        compute(build.set_rows, _TABLE, np.ones((3, 3), "f4"), rows)


def test_nothing_is_written_when_an_index_is_bad(compute):
    device = ReferenceDevice()
    target = build.leaf(Q8_0, (32, 4))
    target.buffer = device.alloc_buffer(target.nbytes)
    target.buffer.fill(0, target.nbytes, 17)
    with pytest.raises(ComputeError):
        compute(build.set_rows, target, np.ones((2, 32), "f4"), np.array([0, 2**40], "i8"))
    assert np.all(arrays.cells(target) == 17)


def test_rows_are_written_by_index_and_others_stay(compute):
    values = np.array([[1.5, 2.5, 3.5], [-1.0, -2.0, -3.0]], "f4")
    result = compute(build.set_rows, _TABLE.astype("f2"), values, np.array([2, 0], "i8"))
    assert result.tolist() == [[-1, -2, -3], [3, 4, 5], [1.5, 2.5, 3.5], [9, 10, 11]]


def test_indices_repeat_over_batches(compute):
    target, values = np.zeros((4, 6, 5, 2), "f4"), np.random.default_rng(4).normal(size=(4, 6, 3, 2)).astype("f4")
    rows = np.array([[[0, 1, 2], [4, 3, 2], [1, 3, 0]], [[2, 4, 1], [3, 0, 1], [0, 2, 4]]], "i4")
    result = compute(build.set_rows, target, values, rows)
    expected = target.copy()
    for i3, i2, i1 in np.ndindex(4, 6, 3):
        expected[i3, i2, rows[i3 % 2, i2 % 3, i1]] = values[i3, i2, i1]
    assert np.array_equal(result, expected)


def test_argmax_is_the_first_of_equals(compute):
    assert compute(build.argmax, [[1.0, 3.0, 3.0], [5.0, -1.0, 5.0], [-2.0, -2.0, -1.0]]).tolist() == [1, 0, 2]


def test_argsort_both_ways(compute):
    rows = [[3.0, -1.0, 2.0], [0.5, 0.25, 7.0]]
    assert compute(build.argsort, rows).tolist() == [[1, 2, 0], [1, 0, 2]]
    assert compute(lambda a: build.argsort(a, descending=True), rows).tolist() == [[0, 2, 1], [2, 0, 1]]


def test_top_k_is_in_order_and_of_equals_the_lower_index_comes_first(compute):
    values = np.random.default_rng(5).permutation(50).astype("f4").reshape(2, 25)
    result = compute(lambda a: build.top_k(a, 4), values)
    for row, found in zip(values, result, strict=True):
        assert row[found].tolist() == sorted(row, reverse=True)[:4]
    assert compute(lambda a: build.top_k(a, 4), [1.0, 3.0, -0.0, 3.0, 0.0, 1.0]).tolist() == [1, 3, 0, 5]
    assert compute(lambda a: build.top_k(a, 3), [-1.0, -0.0, 0.0, -1.0]).tolist() == [1, 2, 0]


def test_a_nan_is_larger_than_any_number(compute):
    row = [1.0, np.inf, np.nan, np.inf, -np.nan, -np.inf]
    assert compute(lambda a: build.top_k(a, 6), row).tolist() == [2, 4, 1, 3, 0, 5]
    assert compute(build.argmax, [row, [-np.inf] * 6, [0.0, -0.0] * 3]).tolist() == [2, 0, 0]
