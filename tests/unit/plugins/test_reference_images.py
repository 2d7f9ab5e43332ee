"""Operations on images of the reference backend, against loops over places."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from rpc_backend.graph import Interpolation, Pool
from rpc_backend.graph import build_images as build

_RANDOM = np.random.default_rng(7)
_FORM = ((2, 1), (1, 2), (1, 3))


def _normal(*shape):
    return _RANDOM.normal(size=shape).astype("f4")


def _at(x, *place):
    """An element, 0 outside."""
    inside = all(0 <= index < extent for index, extent in zip(place, x.shape[-len(place) :], strict=True))
    return x[(..., *place)] if inside else np.zeros(x.shape[: -len(place)], "f4")


def _meets(place, tap, axis):
    stride, padding, dilation = (values[axis] for values in _FORM)
    return place * stride + tap * dilation - padding


def test_a_convolution_is_a_sum_over_its_kernel(compute):
    kernels, x = _normal(5, 3, 2, 4), _normal(2, 3, 9, 8)  # [m, channels, k1, k0], [images, channels, n1, n0]
    found = compute(lambda *given: build.conv_2d(*given, *_FORM), kernels, x)
    single = compute(lambda *given: build.conv_2d(*given, *_FORM, depthwise=True), kernels[:3, :1], x)
    patches = compute(lambda *given: build.im2col(*given, *_FORM), kernels, x)
    assert found.shape == (2, 5, 10, 4)
    for image, i1, i0 in np.ndindex(2, 10, 4):
        seen = np.stack([
            _at(x[image], _meets(i1, k1, 1), _meets(i0, k0, 0)) for k1, k0 in product(range(2), range(4))
        ], axis=-1)  # fmt: skip
        assert np.allclose(patches[image, i1, i0], seen.reshape(-1))
        assert np.allclose(found[image, :, i1, i0], kernels.reshape(5, -1) @ seen.reshape(-1), atol=1e-4)
        assert np.allclose(single[image, :, i1, i0], (kernels[:3, 0].reshape(3, -1) * seen).sum(-1), atol=1e-4)


def test_a_convolution_in_space(compute):
    form = ((1, 2, 1), (1, 0, 1), (2, 1, 1))
    kernels, x = _normal(2 * 3, 2, 2, 3), _normal(4 * 3, 4, 5, 6)  # [m * channels, …], [images * channels, …]
    found = compute(lambda *given: build.conv_3d(*given, 3, *form), kernels, x).reshape(4, 2, 5, 2, 4)
    patches = compute(lambda *given: build.im2col_3d(*given, 3, *form), kernels, x).reshape(4, 5, 2, 4, -1)
    for image, i2, i1, i0 in np.ndindex(4, 5, 2, 4):
        grid = x.reshape(4, 3, 4, 5, 6)[image]
        seen = np.stack(
            [_at(grid, i2 + k2 - 1, 2 * i1 + k1, i0 + 2 * k0 - 1) for k2, k1, k0 in np.ndindex(2, 2, 3)], axis=-1
        )
        assert np.allclose(patches[image, i2, i1, i0], seen.reshape(-1))
        assert np.allclose(found[image, :, i2, i1, i0], kernels.reshape(2, -1) @ seen.reshape(-1), atol=1e-4)


def test_patches_of_a_sound_are_those_of_a_flat_image(compute):
    kernel, x = _normal(1, 3, 4), _normal(2, 3, 9)
    flat = compute(lambda *given: build.im2col(*given, (2,), (1,), (1,)), kernel, x)
    wide = compute(lambda *given: build.im2col(*given, (2, 1), (1, 0), (1, 1)), kernel[:, :, None], x[:, :, None])
    assert np.array_equal(flat, wide.reshape(flat.shape))


def test_a_transposed_convolution_puts_kernels_side_by_side(compute):
    kernels, x = _normal(3, 2, 2, 4), _normal(2, 3, 5, 6)  # [channels, m, k1, k0]
    found = compute(lambda *given: build.conv_transpose_2d(*given, 3), kernels, x)
    expected = np.zeros((2, 2, 4 * 3 + 2, 5 * 3 + 4))
    for image, y, z in np.ndindex(2, 5, 6):
        expected[image, :, 3 * y : 3 * y + 2, 3 * z : 3 * z + 4] += np.tensordot(x[image, :, y, z], kernels, 1)
    assert np.allclose(found, expected, atol=1e-4)


def test_a_transposed_convolution_of_a_sound_is_a_product_and_its_columns_put_together(compute):
    kernels, x = _normal(3, 2, 4), _normal(3, 6)  # [channels, m, k], [channels, n]
    whole = compute(lambda *given: build.conv_transpose_1d(*given, 3), kernels, x)
    columns = (x.T @ kernels.reshape(3, -1)).astype("f4")  # [n, m * k]
    assert np.allclose(compute(lambda a: build.col2im_1d(a, 3, 2), columns), whole, atol=1e-4)
    assert np.allclose(compute(lambda a: build.col2im_1d(a, 3, 2, 4), columns), whole[:, 4:-4], atol=1e-4)


def test_pools(compute):
    x = np.arange(12, dtype="f4").reshape(2, 6)
    pooled = {
        kind: compute(lambda a, kind=kind: build.pool(a, kind, (3,), (2,), (1,)), x)[0].tolist() for kind in Pool
    }  # fmt: skip
    assert pooled == {Pool.MAX: [1, 3, 5], Pool.MEAN: [0.5, 2, 4]}
    two = {
        kind: compute(lambda a, kind=kind: build.pool(a, kind, (3, 2), (2, 2), (1, 1)), x).tolist() for kind in Pool
    }  # fmt: skip
    assert two[Pool.MAX] == [[1, 3, 5], [7, 9, 11]]
    assert np.allclose(two[Pool.MEAN], [[1 / 6, 1, 2], [13 / 6, 4, 5]])  # what is outside counts


def test_a_pool_that_sees_nothing(compute):
    x = np.ones((1, 2), "f4")
    assert compute(lambda a: build.pool(a, Pool.MEAN, (1,), (1,), (1,)), x).tolist() == [0, 1, 1, 0]
    assert compute(lambda a: build.pool(a, Pool.MAX, (1,), (1,), (1,)), x)[0] == -np.finfo("f4").max


@pytest.mark.parametrize(
    ("kind", "flags", "expected"),
    [
        (Interpolation.NEAREST, {}, [0, 0, 8, 8, 16, 16]),
        (Interpolation.BILINEAR, {}, [0, 2, 6, 10, 14, 16]),
        (Interpolation.BILINEAR, {"corners": True}, [0, 3.2, 6.4, 9.6, 12.8, 16]),
        (Interpolation.BICUBIC, {"corners": True}, [0, 2.528, 5.824, 10.176, 13.472, 16]),
    ],
)
def test_a_row_becomes_longer(compute, kind, flags, expected):
    x = np.array([0, 8, 16], "f4")
    found = compute(lambda a: build.upscale(a, (6, 1, 1, 1), kind, **flags), x)
    assert np.allclose(found, expected, atol=1e-5)


def test_what_becomes_smaller_is_smoothed(compute):
    x = np.array([0, 0, 8, 0, 0, 0, 0, 0], "f4")
    plain = compute(lambda a: build.upscale(a, (2, 1, 1, 1), Interpolation.BILINEAR), x)
    smooth = compute(lambda a: build.upscale(a, (2, 1, 1, 1), Interpolation.BILINEAR, smooth=True), x)
    assert np.allclose(plain, [4, 0])
    assert smooth[0] > smooth[1] > 0


def test_images_and_channels_are_repeated(compute):
    x = _normal(1, 2, 2, 3)
    found = compute(lambda a: build.upscale(a, (6, 4, 4, 3)), x)
    assert np.array_equal(found, np.repeat(x, 3, 0).repeat(2, 1).repeat(2, 2).repeat(2, 3))


def test_a_row_is_mirrored(compute):
    found = compute(lambda a: build.pad_reflect_1d(a, 2, 3), np.array([1, 2, 3, 4], "f4"))
    assert found.tolist() == [3, 2, 1, 2, 3, 4, 3, 2, 1]


def test_windows_are_cut_and_put_together(compute):
    x = _normal(5, 7, 2)  # [n1, n0, c]
    windows = compute(lambda a: build.win_part(a, 3), x)
    assert windows.shape == (6, 3, 3, 2)
    assert np.array_equal(windows[1], x[:3, 3:6])
    assert np.array_equal(windows[5, :2, :1], x[3:, 6:])
    assert not windows[5, 2:].any()
    assert np.array_equal(compute(lambda a: build.win_unpart(a, 7, 5), windows), x)


def test_positions_of_pairs(compute):
    rows = _normal(5, 4).astype("f2")
    found = compute(build.get_rel_pos, rows)
    for i2, i1 in np.ndindex(3, 3):
        assert np.array_equal(found[i2, i1], rows[2 - i1 + i2])


def test_positions_are_added(compute):
    a, w, h = _normal(2, 8, 9), _normal(2, 2, 4, 3), _normal(2, 2, 4, 3)
    found = compute(build.add_rel_pos, a, w, h)
    for batch, row, y, x in np.ndindex(2, 8, 3, 3):
        expected = a[batch, row, 3 * y + x] + w[batch, row // 4, row % 4, x] + h[batch, row // 4, row % 4, y]
        assert found[batch, row, 3 * y + x] == pytest.approx(expected, abs=1e-5)
