"""Nodes of operations on images, sounds and other grids: convolutions, pools, resampling, windows.

Belongs here: builders of those. Must not be here: all others (`build`), or shape rules (`ops.rules_images`).

Strides, paddings and dilations are given per axis, the first axis (width) first.
"""

from __future__ import annotations

from collections.abc import Sequence

from rpc_backend.graph.build import build
from rpc_backend.graph.element_types import F32, ElementType
from rpc_backend.graph.ops import Interpolation, Pool, Shape
from rpc_backend.graph.ops.rules_images import ALIGN_CORNERS, ANTIALIAS
from rpc_backend.graph.tensor import Extents, Tensor

Params = dict[str, int | float]


def _per_axis(**values: Sequence[int]) -> Params:
    return {f"{name}{axis}": value for name, given in values.items() for axis, value in enumerate(given)}


def _convolution(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> Params:
    return _per_axis(stride=stride, padding=padding, dilation=dilation)


def im2col(
    kernel: Tensor, a: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    kind: ElementType = F32,
) -> Tensor:  # fmt: skip
    """Patches along one axis or two, as many as are given, in an element type."""
    params = _convolution(stride, padding, dilation) | {"is_2d": int(len(stride) == 2)}
    return build("IM2COL", [kernel, a], params, Shape(kind, (1, 1, 1, 1)))


def im2col_3d(
    kernel: Tensor, a: Tensor, channels: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    kind: ElementType = F32,
) -> Tensor:  # fmt: skip
    params = _convolution(stride, padding, dilation) | {"channels": channels}
    return build("IM2COL_3D", [kernel, a], params, Shape(kind, (1, 1, 1, 1)))


def conv_2d(
    kernels: Tensor, a: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    *, depthwise: bool = False,
) -> Tensor:  # fmt: skip
    op = "CONV_2D_DW" if depthwise else "CONV_2D"
    return build(op, [kernels, a], _convolution(stride, padding, dilation))


def conv_3d(
    kernels: Tensor, a: Tensor, channels: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    counts: Params = {"channels": channels, "n": a.ne[3] // channels, "m": kernels.ne[3] // channels}
    return build("CONV_3D", [kernels, a], _convolution(stride, padding, dilation) | counts)


def conv_transpose_1d(kernels: Tensor, a: Tensor, stride: int) -> Tensor:
    return build("CONV_TRANSPOSE_1D", [kernels, a], {"stride0": stride, "dilation0": 1})


def conv_transpose_2d(kernels: Tensor, a: Tensor, stride: int) -> Tensor:
    return build("CONV_TRANSPOSE_2D", [kernels, a], {"stride": stride})


def col2im_1d(a: Tensor, stride: int, m: int, padding: int = 0) -> Tensor:
    return build("COL2IM_1D", [a], {"stride0": stride, "m": m, "padding0": padding})


def pool(a: Tensor, kind: Pool, size: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Tensor:
    """A pool along one axis or two, as many as are given."""
    params = _per_axis(size=size, stride=stride, padding=padding) | {"pool": int(kind)}
    return build("POOL_1D" if len(size) == 1 else "POOL_2D", [a], params)


def upscale(
    a: Tensor, ne: Extents, kind: Interpolation = Interpolation.NEAREST, *, corners: bool = False, smooth: bool = False
) -> Tensor:
    mode = int(kind) | (ALIGN_CORNERS if corners else 0) | (ANTIALIAS if smooth else 0)
    return build("UPSCALE", [a], {"mode": mode}, Shape(F32, ne))


def pad_reflect_1d(a: Tensor, before: int, after: int) -> Tensor:
    return build("PAD_REFLECT_1D", [a], {"before": before, "after": after})


def win_part(a: Tensor, w: int) -> Tensor:
    return build("WIN_PART", [a], {"windows0": -(-a.ne[1] // w), "windows1": -(-a.ne[2] // w), "w": w})


def win_unpart(a: Tensor, n0: int, n1: int) -> Tensor:
    return build("WIN_UNPART", [a], {"w": a.ne[1]}, Shape(F32, (a.ne[0], n0, n1, 1)))


def get_rel_pos(a: Tensor) -> Tensor:
    return build("GET_REL_POS", [a])


def add_rel_pos(a: Tensor, w: Tensor, h: Tensor) -> Tensor:
    return build("ADD_REL_POS", [a, w, h])
