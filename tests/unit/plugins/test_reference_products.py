"""Products by index of the reference backend, against loops."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.errors import ComputeError
from rpc_backend.graph import build

_RANDOM = np.random.default_rng(4)
_IDS = np.array([[0, 3], [2, 0], [1, 1]], "i4")  # two experts for each of three tokens


@pytest.mark.parametrize("n_rows", [1, 2])
def test_each_id_names_the_matrix_that_a_row_is_taken_through(compute, n_rows):
    experts, b = _RANDOM.normal(size=(4, 5, 8)), _RANDOM.normal(size=(3, n_rows, 8))
    result = compute(build.mul_mat_id, experts, b, _IDS)
    for token, slot in np.ndindex(3, 2):
        expected = experts[_IDS[token, slot]] @ b[token, slot % n_rows]
        assert np.allclose(result[token, slot], expected, rtol=1e-4, atol=1e-5)


def test_each_id_names_the_row_that_is_added(compute):
    a, b = _RANDOM.normal(size=(3, 2, 5)), _RANDOM.normal(size=(4, 5))
    result = compute(build.add_id, a, b, _IDS)
    for token, slot in np.ndindex(3, 2):
        assert np.allclose(result[token, slot], a[token, slot] + b[_IDS[token, slot]], atol=1e-6)


@pytest.mark.parametrize("outside", [-1, 4, 2**31 - 1])
def test_an_id_that_is_none_is_an_error(compute, outside):
    ids = np.array([[0, outside]], "i4")
    with pytest.raises(ComputeError, match=f"MUL_MAT_ID: row index {outside} is not one of the 4"):
        compute(build.mul_mat_id, np.zeros((4, 5, 8)), np.zeros((1, 1, 8)), ids)
    with pytest.raises(ComputeError, match=f"ADD_ID: row index {outside} is not one of the 4"):
        compute(build.add_id, np.zeros((1, 2, 5)), np.zeros((4, 5)), ids)


def test_outer_products_are_summed_over_rows(compute):
    a, b = _RANDOM.normal(size=(1, 2, 4, 5)), _RANDOM.normal(size=(3, 4, 4, 6))
    result = compute(build.out_prod, a, b)
    for i3, i2, n, m in np.ndindex(3, 4, 6, 5):
        expected = sum(a[0, i2 // 2, k, m] * b[i3, i2, k, n] for k in range(4))
        assert result[i3, i2, n, m] == pytest.approx(expected, rel=1e-4, abs=1e-5)
