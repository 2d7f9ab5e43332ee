"""Tables of UPSCALE: which elements are taken, and how much of each."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rpc_backend.graph import Interpolation, build, build_images, taps_of
from rpc_backend.graph.element_types import F32

_KINDS = [(kind, smooth) for kind in Interpolation for smooth in (False, True)[: 1 + (kind is Interpolation.BILINEAR)]]


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("kind", "smooth"), _KINDS)
@pytest.mark.parametrize(("n_in", "n_out"), list(itertools.product((1, 2, 7, 100), repeat=2)))
def test_every_element_is_a_mean_of_some_that_are_there(kind, smooth, corners, n_in, n_out):
    a = build.leaf(F32, (n_in, n_in, n_in, n_in))
    node = build_images.upscale(a, (n_out,) * 4, kind, corners=corners, smooth=smooth)
    for taps in taps_of(node):
        assert taps.indices.shape == taps.weights.shape == (n_out, taps.indices.shape[1])
        assert taps.indices.min() >= 0
        assert taps.indices.max() < n_in
        assert np.allclose(taps.weights.sum(axis=1), 1, atol=1e-5)
    assert all(taps.indices.shape[1] == 1 for taps in taps_of(node)[2:])


def test_corners_meet_corners():
    a = build.leaf(F32, (5, 5))
    node = build_images.upscale(a, (9, 3, 1, 1), Interpolation.BILINEAR, corners=True)
    for taps in taps_of(node)[:2]:
        for place, wanted in ((0, 0), (-1, 4)):
            assert taps.indices[place] @ taps.weights[place] == pytest.approx(wanted)


def test_the_nearest_element_of_a_very_long_row_is_inside():
    a = build.leaf(F32, (3, 1))
    first = taps_of(build_images.upscale(a, (1 << 20, 1, 1, 1)))[0]
    counts = np.bincount(first.indices[:, 0])
    assert len(counts) == 3
    assert np.ptp(counts) <= 2
