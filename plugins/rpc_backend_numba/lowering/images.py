"""IM2COL, IM2COL_3D, COL2IM_1D, CONV_*, POOL_*, UPSCALE, PAD_REFLECT_1D, WIN_*, GET_REL_POS, ADD_REL_POS.

Belongs here: how their grids lie in memory, as numbers for kernels. Must not be here: kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rpc_backend.plugin_api import Pool, Tensor, host_address, taps_of
from rpc_backend_numba import convolution_words as at
from rpc_backend_numba.arguments import Operand, Param
from rpc_backend_numba.builder import PlanBuilder

_AXES = 3


def supports(node: Tensor) -> bool:
    return True


def supports_add(node: Tensor) -> bool:
    return node.is_contiguous and all(source.is_contiguous for source in node.sources)


def im2col(builder: PlanBuilder, node: Tensor) -> None:
    kernel, grid = node.sources
    nb, out = grid.nb, Operand.of(node)
    if node.params["is_2d"]:
        words = _words(node, 2, kernel.ne[:2], grid.ne[:2], nb[:2])
        channels, channel_step, image_step = grid.ne[2], nb[2], nb[3]
    else:
        words = _words(node, 1, kernel.ne[:1], grid.ne[:1], nb[:1])
        channels, channel_step, image_step = grid.ne[1], nb[1], nb[2]
        n0, n1, n2, _ = node.ne
        out = Operand(host_address(node), (n0, n1, 1, n2), (*node.nb[:3], node.nb[2]), node.type.code)
    words[at.CHANNELS], words[at.DEPTHS] = channels, 1
    words[at.CHANNEL_STEP], words[at.IMAGE_STEP] = channel_step, image_step
    builder.row("patches", node, [grid], [builder.constant(words)], operands=[out, Operand.of(grid)])


def im2col_3d(builder: PlanBuilder, node: Tensor) -> None:
    kernel, grid = node.sources
    channels = int(node.params["channels"])
    words = _words(node, 3, kernel.ne[:3], grid.ne[:3], grid.nb[:3])
    words[at.CHANNELS], words[at.DEPTHS] = channels, node.ne[3] // (grid.ne[3] // channels)
    words[at.CHANNEL_STEP], words[at.IMAGE_STEP] = grid.nb[3], channels * grid.nb[3]
    builder.row("patches", node, [grid], [builder.constant(words)])


def conv_2d(builder: PlanBuilder, node: Tensor) -> None:
    kernels, grid = node.sources
    words = _words(node, 2, kernels.ne[:2], grid.ne[:2], grid.nb[:2])
    words[at.CHANNELS], words[at.CHANNEL_STEP], words[at.IMAGE_STEP] = grid.ne[2], grid.nb[2], grid.nb[3]
    words[at.KERNEL_STEPS : at.KERNEL_STEPS + 2] = kernels.nb[:2]
    words[at.KERNEL_CHANNEL_STEP], words[at.KERNEL_STEP] = kernels.nb[2], kernels.nb[3]
    _convolve(builder, node, words)


def conv_2d_dw(builder: PlanBuilder, node: Tensor) -> None:
    kernels, grid = node.sources
    words = _words(node, 2, kernels.ne[:2], grid.ne[:2], grid.nb[:2])
    words[at.CHANNELS], words[at.GROUP_STEP], words[at.IMAGE_STEP] = 1, grid.nb[2], grid.nb[3]
    words[at.KERNEL_STEPS : at.KERNEL_STEPS + 2] = kernels.nb[:2]
    words[at.KERNEL_STEP] = kernels.nb[3]
    _convolve(builder, node, words)


def conv_3d(builder: PlanBuilder, node: Tensor) -> None:
    kernels, grid = node.sources
    channels = int(node.params["channels"])
    words = _words(node, 3, kernels.ne[:3], grid.ne[:3], grid.nb[:3])
    words[at.CHANNELS], words[at.DEPTHS], words[at.N_KERNELS] = channels, node.ne[2], int(node.params["m"])
    words[at.CHANNEL_STEP], words[at.IMAGE_STEP] = grid.nb[3], channels * grid.nb[3]
    words[at.KERNEL_STEPS : at.KERNEL_STEPS + 3] = kernels.nb[:3]
    words[at.KERNEL_CHANNEL_STEP], words[at.KERNEL_STEP] = kernels.nb[3], channels * kernels.nb[3]
    _convolve(builder, node, words)


def _convolve(builder: PlanBuilder, node: Tensor, words: np.ndarray) -> None:
    kernels, grid = node.sources
    builder.row("convolve", node, [grid, kernels], [builder.constant(words)])


def _words(
    node: Tensor, n_axes: int, size: Sequence[int], grid: Sequence[int], steps: Sequence[int]
) -> np.ndarray:  # fmt: skip
    """Return the description of a convolution, so far as its axes say it; the axes that it lacks have one element."""
    words = np.zeros(at.CONVOLUTION_WORDS, np.int64)
    for first, given in ((at.SIZES, size), (at.GRID, grid), (at.GRID_STEPS, steps)):
        default = 0 if first == at.GRID_STEPS else 1
        words[first : first + _AXES] = [*given, *[default] * (_AXES - n_axes)]
    for first, name, default in (
        (at.STRIDES, "stride", 1), (at.PADDINGS, "padding", 0), (at.DILATIONS, "dilation", 1),
    ):  # fmt: skip
        given = [int(node.params[f"{name}{axis}"]) for axis in range(n_axes)]
        words[first : first + _AXES] = [*given, *[default] * (_AXES - n_axes)]
    return words


def conv_transpose_1d(builder: PlanBuilder, node: Tensor) -> None:
    kernels, grid = node.sources
    out, kernels_2d, grid_2d = (_with_height(tensor) for tensor in (node, kernels, grid))
    builder.row(
        "spread", node, [grid, kernels], [int(node.params["stride0"])], operands=[out, grid_2d, kernels_2d]
    )  # fmt: skip


def _with_height(tensor: Tensor) -> Operand:
    """Describe a grid of one axis as one of two, of which the second has one element."""
    n0, n1, n2, _ = tensor.ne
    nb = (tensor.nb[0], 0, tensor.nb[1], tensor.nb[2])
    return Operand(host_address(tensor), (n0, 1, n1, n2), nb, tensor.type.code)


def conv_transpose_2d(builder: PlanBuilder, node: Tensor) -> None:
    kernels, grid = node.sources
    builder.row("spread", node, [grid, kernels], [int(node.params["stride"])])


def col2im_1d(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("columns", node, node.sources, [int(node.params[name]) for name in ("stride0", "padding0")])


def pool_1d(builder: PlanBuilder, node: Tensor) -> None:
    _pool(builder, node, 1, 0)


def pool_2d(builder: PlanBuilder, node: Tensor) -> None:
    _pool(builder, node, 2, int(node.params["size0"]) * int(node.params["size1"]))


def _pool(builder: PlanBuilder, node: Tensor, n_axes: int, count: int) -> None:
    params: list[Param] = []
    for name, default in (("size", 1), ("stride", 1), ("padding", 0)):
        params += [int(node.params[f"{name}{axis}"]) if axis < n_axes else default for axis in range(2)]
    builder.row("pool", node, node.sources, [*params, int(node.params["pool"] == Pool.MEAN), count])


def upscale(builder: PlanBuilder, node: Tensor) -> None:
    first, second, third, fourth = taps_of(node)
    params: list[Param] = []
    for taps in (first, second):
        indices, weights = np.ascontiguousarray(taps.indices), np.ascontiguousarray(taps.weights)
        params += [builder.constant(indices), builder.constant(weights), indices.shape[1]]
    params += [builder.constant(np.ascontiguousarray(taps.indices)) for taps in (third, fourth)]
    builder.row("resample", node, node.sources, params)


def pad_reflect_1d(builder: PlanBuilder, node: Tensor) -> None:
    widths = (int(node.params["before"]), int(node.params["after"]))
    rows = [np.pad(np.arange(node.sources[0].ne[0]), widths, "reflect"), *(np.arange(count) for count in node.ne[1:])]
    addresses = [builder.constant(row.astype(np.int64)) for row in rows]
    one = builder.constant(np.ones(max(node.ne[:2]), np.float32))
    params: list[Param] = [addresses[0], one, 1, addresses[1], one, 1, *addresses[2:]]
    builder.row("resample", node, node.sources, params)


def win_part(builder: PlanBuilder, node: Tensor) -> None:
    builder.row("windows", node, node.sources, [int(node.params["w"]), int(node.params["windows0"]), 0])


def win_unpart(builder: PlanBuilder, node: Tensor) -> None:
    w = int(node.params["w"])
    builder.row("windows", node, node.sources, [w, -(-node.ne[1] // w), 1])


def get_rel_pos(builder: PlanBuilder, node: Tensor) -> None:
    """A copy of a view whose rows go backwards along the second axis, and forwards along the third."""
    a, n = node.sources[0], node.ne[1]
    start, step = host_address(a) + (n - 1) * a.nb[1], a.nb[1]
    source = Operand(start, node.ne, (a.nb[0], -step, step, 0), a.type.code)
    builder.row("copy.same", node, [a], [2], operands=[Operand.of(node), source])


def add_rel_pos(builder: PlanBuilder, node: Tensor) -> None:
    a, w, h = node.sources
    n, rows, batch = w.ne[0], w.ne[1] * w.ne[2], w.ne[3]
    out, before = (_packed(tensor, (n, n, rows, batch)) for tensor in (node, a))
    builder.row("binary.ADD", node, [a, w], operands=[out, before, _packed(w, (n, 1, rows, batch))])
    builder.row("binary.ADD", node, [h], operands=[out, out, _packed(h, (1, n, rows, batch))])


def _packed(tensor: Tensor, ne: tuple[int, int, int, int]) -> Operand:
    """Describe contiguous F32 with other extents."""
    nb = (4, 4 * ne[0], 4 * ne[0] * ne[1], 4 * ne[0] * ne[1] * ne[2])
    return Operand(host_address(tensor), ne, nb, tensor.type.code)
