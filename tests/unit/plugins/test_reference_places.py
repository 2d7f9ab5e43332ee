"""Made, widened, shifted and overwritten tensors of the reference backend, element by element."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rpc_backend.graph import Triangle, build

_SQUARE = np.arange(1.0, 10.0).reshape(3, 3)


def test_a_window_is_written_or_added(compute):
    a, b = np.arange(12.0).reshape(3, 4), [[100.0, 200.0], [300.0, 400.0]]
    written = compute(lambda x, y: build.overwrite(x, y, (16, 48, 48), 20), a, b)
    assert written.tolist() == [[0, 1, 2, 3], [4, 100, 200, 7], [8, 300, 400, 11]]
    added = compute(lambda x, y: build.overwrite(x, y, (16, 48, 48), 20, add=True), a, b)
    assert added.tolist() == [[0, 1, 2, 3], [4, 105, 206, 7], [8, 309, 410, 11]]


def test_padding_is_zero_or_the_other_end(compute):
    a = [[1.0, 2.0], [3.0, 4.0]]
    padded = compute(lambda x: build.pad(x, (1, 0, 0, 0), (1, 1, 0, 0)), a)
    assert padded.tolist() == [[0, 0, 0, 0], [0, 1, 2, 0], [0, 3, 4, 0]]
    around = compute(lambda x: build.pad(x, (1, 0, 0, 0), (1, 1, 0, 0), circular=True), a)
    assert around.tolist() == [[4, 3, 4, 3], [2, 1, 2, 1], [4, 3, 4, 3]]


def test_rolled_elements_come_in_again(compute):
    assert compute(lambda x: build.roll(x, (1, 0, 0, 0)), [1.0, 2.0, 3.0]).tolist() == [3, 1, 2]
    assert compute(lambda x: build.roll(x, (0, -1, 0, 0)), _SQUARE).tolist() == [*_SQUARE[1:].tolist(), [1, 2, 3]]


@pytest.mark.parametrize(
    ("triangle", "expected"),
    [
        (Triangle.LOWER, [[0, 0, 0], [4, 0, 0], [7, 8, 0]]),
        (Triangle.LOWER_DIAGONAL, [[1, 0, 0], [4, 5, 0], [7, 8, 9]]),
        (Triangle.UPPER, [[0, 2, 3], [0, 0, 6], [0, 0, 0]]),
        (Triangle.UPPER_DIAGONAL, [[1, 2, 3], [0, 5, 6], [0, 0, 9]]),
    ],
)
def test_one_triangle_is_kept(compute, triangle, expected):
    assert compute(lambda x: build.tri(x, triangle), _SQUARE).tolist() == expected


def test_diagonals(compute):
    assert compute(build.diag, [1.0, 2.0]).tolist() == [[1, 0], [0, 2]]
    hidden = compute(lambda x: build.diag_mask(x, 1), _SQUARE)
    assert hidden.tolist() == [[1, 2, -math.inf], [4, 5, 6], [7, 8, 9]]
    assert compute(lambda x: build.diag_mask(x, 0, zero=True), _SQUARE).tolist() == [[1, 0, 0], [4, 5, 0], [7, 8, 9]]


def test_constants(compute):
    assert compute(lambda x: build.fill(x, 2.5), [1.0, 2.0]).tolist() == [2.5, 2.5]
    assert compute(lambda: build.arange(-1.0, 0.6, 0.5)).tolist() == [-1, -0.5, 0, 0.5]


def test_times_become_cosines_and_sines(compute):
    found = compute(lambda x: build.timestep_embedding(x, 5, 100), [3.0])
    slow = 3.0 / 10
    assert np.allclose(found, [math.cos(3), math.cos(slow), math.sin(3), math.sin(slow), 0], atol=1e-6)
