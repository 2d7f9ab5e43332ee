"""Operations on images: which shapes their rules give, and what they refuse."""

from __future__ import annotations

import pytest

from rpc_backend.errors import GraphError
from rpc_backend.graph import OPS, Interpolation, Pool, build
from rpc_backend.graph import build_images as images
from rpc_backend.graph.element_types import BF16, F16, F32, I32

_PLAIN = ((1, 1), (0, 0), (1, 1))
_DEEP = ((2, 1, 3), (1, 1, 1), (1, 2, 1))


def _leaf(*ne, kind=F32):
    return build.leaf(kind, ne)


def _conv(kernels=None, grid=None, form=_PLAIN, **settings):
    return images.conv_2d(kernels or _leaf(3, 2, 4, 5), grid or _leaf(9, 8, 4, 2), *form, **settings)


def test_patches_have_the_asked_type():
    patches = images.im2col(_leaf(3, 4, 5), _leaf(9, 4, 2), (2,), (1,), (1,), F16)
    assert (patches.type, patches.ne) == (F16, (12, 5, 2, 1))
    assert images.im2col(_leaf(3, 2, 4), _leaf(9, 8, 4, 2), *_PLAIN).ne == (24, 7, 7, 2)
    assert images.im2col_3d(_leaf(3, 2, 2, 8), _leaf(9, 8, 7, 8), 4, *_DEEP).ne == (48, 5, 8, 3 * 2)


def test_convolutions():
    assert _conv().ne == (7, 7, 5, 2)
    assert _conv(form=((2, 3), (1, 2), (2, 1))).ne == (4, 4, 5, 2)
    assert _conv(_leaf(3, 2, 1, 4), depthwise=True).ne == (7, 7, 4, 2)
    assert images.conv_3d(_leaf(3, 2, 2, 12), _leaf(9, 8, 7, 8), 4, *_DEEP).ne == (5, 8, 3, 6)
    assert images.conv_transpose_1d(_leaf(3, 5, 4), _leaf(9, 4), 2).ne == (19, 5, 1, 1)
    assert images.conv_transpose_2d(_leaf(3, 2, 5, 4), _leaf(9, 8, 4, 2), 2).ne == (19, 16, 5, 2)
    columns = images.col2im_1d(_leaf(12, 6, kind=BF16), 2, 4, 1)
    assert (columns.type, columns.ne) == (BF16, (11, 4, 1, 1))


def test_what_becomes_smaller_or_larger():
    assert images.pool(_leaf(9, 8, 3), Pool.MAX, (2,), (2,), (0,)).ne == (4, 8, 3, 1)
    assert images.pool(_leaf(9, 8, 3, kind=F16), Pool.MEAN, (2, 3), (2, 1), (1, 0)).ne == (5, 6, 3, 1)
    assert images.upscale(_leaf(9, 8, 3), (18, 4, 3, 1)).ne == (18, 4, 3, 1)
    assert images.pad_reflect_1d(_leaf(9, 8), 8, 2).ne == (19, 8, 1, 1)
    assert images.win_part(_leaf(6, 9, 8), 4).ne == (6, 4, 4, 6)
    assert images.win_unpart(_leaf(6, 4, 4, 6), 9, 8).ne == (6, 9, 8, 1)
    assert images.get_rel_pos(_leaf(6, 7, kind=F16)).ne == (6, 4, 4, 1)
    assert images.add_rel_pos(_leaf(9, 8, 2), _leaf(3, 4, 2, 2), _leaf(3, 4, 2, 2)).ne == (9, 8, 2, 1)


_REFUSED = {
    "stride": (lambda: _conv(form=((0, 1), (0, 0), (1, 1))), "stride 0"),
    "padding": (lambda: _conv(form=((1, 1), (-1, 0), (1, 1))), "padding -1"),
    "dilation": (lambda: _conv(form=((1, 1), (0, 0), (1, 0))), "dilation 0"),
    "too large": (lambda: _conv(form=((1, 1), (0, 0), (5, 1))), "does not fit into"),
    "far too large": (
        lambda: _conv(_leaf(9, 2, 4, 5), form=((1, 1), (2**31 - 1, 0), (2**31 - 1, 1))), "does not fit into",
    ),
    "empty": (lambda: _conv(grid=_leaf(9, 0, 4)), "is empty"),
    "channels": (lambda: _conv(_leaf(3, 2, 3, 5)), "differ in their channels"),
    "kernel type": (lambda: _conv(_leaf(3, 2, 4, 5, kind=BF16)), "must be F32 or F16"),
    "grid type": (lambda: _conv(grid=_leaf(9, 8, 4, kind=F16)), "must be F32"),
    "depthwise": (lambda: _conv(_leaf(3, 2, 2, 4), depthwise=True), "not one kernel per channel"),
    "conv_3d channels": (lambda: images.conv_3d(_leaf(3, 2, 2, 13), _leaf(9, 8, 7, 8), 4, *_DEEP), "not of 4 channels"),
    "conv_3d none": (lambda: build.build("CONV_3D", [_leaf(1), _leaf(1)], {"stride0": 1}), "is not above 0"),
    "im2col type": (lambda: images.im2col(_leaf(3, 4), _leaf(9, 4), (1,), (0,), (1,), I32), "must be F32 or F16"),
    "im2col channels": (lambda: images.im2col(_leaf(3, 5), _leaf(9, 4), (1,), (0,), (1,)), "differ in their channels"),
    "im2col axes": (lambda: images.im2col(_leaf(3, 4), _leaf(9, 4, 1, 2), (1,), (0,), (1,)), "four axes"),
    "im2col channels, flat": (lambda: images.im2col(_leaf(3, 2, 5), _leaf(9, 8, 4), *_PLAIN), "in their channels"),
    "im2col_3d channels": (lambda: images.im2col_3d(_leaf(3, 2, 2, 8), _leaf(9, 8, 7, 8), 3, *_DEEP), "of 3 channels"),
    "im2col_3d no channels": (lambda: images.im2col_3d(_leaf(3), _leaf(9), 0, *_DEEP), "of 0 channels"),
    "transposed stride": (lambda: images.conv_transpose_2d(_leaf(3, 2, 5, 4), _leaf(9, 8, 4), 0), "stride 0"),
    "transposed channels": (lambda: images.conv_transpose_2d(_leaf(3, 2, 5, 3), _leaf(9, 8, 4), 1), "their channels"),
    "transposed empty": (lambda: images.conv_transpose_1d(_leaf(3, 5, 0), _leaf(9, 0), 1), "is empty"),
    "transposed axes": (lambda: images.conv_transpose_1d(_leaf(3, 5, 4), _leaf(9, 4, 2), 1), "do not fit"),
    "transposed padding": (
        lambda: build.build("CONV_TRANSPOSE_1D", [_leaf(3), _leaf(9)], {"stride0": 1, "padding0": 1}), "only padding 0",
    ),
    "columns": (lambda: images.col2im_1d(_leaf(11, 6), 2, 4), "no columns of 4"),
    "columns stride": (lambda: images.col2im_1d(_leaf(12, 6), 0, 4), "stride 0"),
    "columns padding": (lambda: images.col2im_1d(_leaf(12, 6), 2, 4, 7), "nothing is left"),
    "pool kind": (lambda: build.build("POOL_1D", [_leaf(9)], {"pool": 2}), "Pool 2 is not known"),
    "pool size": (lambda: images.pool(_leaf(9), Pool.MAX, (0,), (1,), (0,)), "size 0"),
    "pool too large": (lambda: images.pool(_leaf(9), Pool.MAX, (10,), (1,), (0,)), "smaller than a pool"),
    "pool empty": (lambda: images.pool(_leaf(0), Pool.MAX, (1,), (1,), (0,)), "not empty"),
    "mode": (lambda: build.build("UPSCALE", [_leaf(9)], {"mode": 3}, _leaf(9)), "Interpolation 3 is not known"),
    "flags": (lambda: build.build("UPSCALE", [_leaf(9)], {"mode": 1024}, _leaf(9)), "unknown flags"),
    "negative mode": (lambda: build.build("UPSCALE", [_leaf(9)], {"mode": -1}, _leaf(9)), "is not known"),
    "smoothed": (lambda: images.upscale(_leaf(9), (4, 1, 1, 1), Interpolation.BICUBIC, smooth=True), "only BILINEAR"),
    "upscale empty": (lambda: images.upscale(_leaf(0), (4, 1, 1, 1)), "is empty"),
    "upscale far": (lambda: images.upscale(_leaf(9), (2**20 + 1, 1, 1, 1)), "above 1048576"),
    "reflect": (lambda: images.pad_reflect_1d(_leaf(9), 9, 0), "padding 9 and 0 does not fit"),
    "reflect negative": (lambda: images.pad_reflect_1d(_leaf(9), 0, -1), "padding 0 and -1 does not fit"),
    "windows": (lambda: build.build("WIN_PART", [_leaf(6, 9, 8)], {"windows0": 2, "w": 4}), r"not \[2, 0\] windows"),
    "window size": (lambda: build.build("WIN_PART", [_leaf(6, 9, 8)], {"w": 0}), "w 0 is not above 0"),
    "put together": (lambda: images.win_unpart(_leaf(6, 4, 4, 6), 9, 9), "6 windows of 4"),
    "put together width": (lambda: images.win_unpart(_leaf(6, 4, 3, 6), 9, 8), "has no windows of 4"),
    "positions": (lambda: images.get_rel_pos(_leaf(6, 8, kind=F16)), "not an odd number of rows"),
    "positions type": (lambda: images.get_rel_pos(_leaf(6, 7)), "of F16"),
    "add positions": (lambda: images.add_rel_pos(_leaf(9, 8, 2), _leaf(3, 4, 2), _leaf(3, 4, 2)), "do not fit"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), _REFUSED.values(), ids=_REFUSED)
def test_what_breaks_a_rule_is_refused(make, message):
    with pytest.raises(GraphError, match=message):
        make()


@pytest.mark.parametrize("op_name", ["IM2COL", "IM2COL_3D", "UPSCALE", "WIN_UNPART"])
def test_operations_with_a_choice_need_a_wanted_shape(op_name):
    op = OPS[op_name]
    with pytest.raises(GraphError, match="needs the shape of its result"):
        op.rule((_leaf(4),) * op.max_sources, {}, None)
