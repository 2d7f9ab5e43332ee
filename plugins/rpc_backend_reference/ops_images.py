"""Convolutions, pools, resampling and windows of images, sounds and other grids.

Belongs here: IM2COL, IM2COL_3D, COL2IM_1D, CONV_*, POOL_*, UPSCALE, PAD_REFLECT_1D, WIN_PART, WIN_UNPART, GET_REL_POS,
ADD_REL_POS. Must not be here: short convolutions with a state (`ops_states`).

Source: ggml's CPU backend. Grids are [images, channels, depth, height, width] here, whatever axes they lack.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rpc_backend.plugin_api import Pool, Tensor, taps_of
from rpc_backend_reference.arrays import Array, floats, store

_LEAST = -np.finfo(np.float32).max


def im2col(node: Tensor) -> None:
    """Of each place: the patch that a kernel meets there, channel after channel; zeros where it reaches outside."""
    kernel, grid = node.sources
    x = floats(grid)
    if node.params["is_2d"]:
        size, n_axes, x = kernel.ne[:2], 2, x[:, :, None]
    else:
        size, n_axes, x = kernel.ne[:1], 1, x[0, :, :, None, None]
    _store_patches(node, x, size, n_axes)


def im2col_3d(node: Tensor) -> None:
    kernel, grid = node.sources
    channels = int(node.params["channels"])
    _store_patches(node, floats(grid).reshape(-1, channels, *grid.ne[2::-1]), kernel.ne[:3], 3)


def _store_patches(node: Tensor, x: Array, size: tuple[int, ...], n_axes: int) -> None:
    taps = [part for _, part in _parts(node, x, size, n_axes)]
    patches = np.stack(taps, axis=2)  # [images, channels, taps, depth, height, width]
    store(node, np.moveaxis(patches, (1, 2), (4, 5)).reshape(node.ne[::-1]))


def conv_2d(node: Tensor) -> None:
    kernels, grid = (floats(source) for source in node.sources)
    _store_convolved(node, kernels[:, :, None], grid[:, :, None], 2)


def conv_3d(node: Tensor) -> None:
    kernels, grid = (floats(source) for source in node.sources)
    m, n, channels = (int(node.params[name]) for name in ("m", "n", "channels"))
    kernels, grid = kernels.reshape(m, channels, *kernels.shape[1:]), grid.reshape(n, channels, *grid.shape[1:])
    _store_convolved(node, kernels, grid, 3)


def _store_convolved(node: Tensor, kernels: Array, grid: Array, n_axes: int) -> None:
    """Shapes: kernels [m, channels, depth, height, width]."""
    total: Array = np.zeros(())
    for at, part in _parts(node, grid.astype(np.float64), kernels.shape[: -n_axes - 1 : -1], n_axes):
        total = total + np.einsum("mc,ncdhw->nmdhw", kernels[(..., *at)], part)
    store(node, total.reshape(node.ne[::-1]))


def conv_2d_dw(node: Tensor) -> None:
    kernels, grid = (floats(source) for source in node.sources)
    total: Array = np.zeros(())
    for at, part in _parts(node, grid[:, :, None].astype(np.float64), kernels.shape[:1:-1], 2):
        total = total + kernels[:, 0, at[1], at[2]][:, None, None, None] * part
    store(node, total[:, :, 0])


def _parts(node: Tensor, x: Array, size: tuple[int, ...], n_axes: int) -> Iterator[tuple[tuple[int, int, int], Array]]:
    """Yield for each element (depth, height, width) of a kernel what it meets at all places, the first axis fastest.

    Shapes: `size` is (width, height, depth), as far as there are axes.
    """
    params = node.params
    sizes = [*size, 1, 1][:3]
    steps = [
        [int(params[f"{name}{axis}"]) if axis < n_axes else default for axis in range(3)]
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    ]
    for depth, height, width in np.ndindex(sizes[2], sizes[1], sizes[0]):
        part = x
        for axis, tap in enumerate((width, height, depth)):
            stride, padding, dilation = (step[axis] for step in steps)
            span = dilation * (sizes[axis] - 1) + 1
            count = (x.shape[4 - axis] + 2 * padding - span) // stride + 1
            part = _picked(part, 4 - axis, np.arange(count) * stride + tap * dilation - padding)
        yield (depth, height, width), part


def _picked(x: Array, axis: int, places: Array) -> Array:
    """Return elements along an axis, 0 where there are none."""
    there = (places >= 0) & (places < x.shape[axis])
    shape = [1] * x.ndim
    shape[axis] = len(places)
    return np.where(there.reshape(shape), np.take(x, np.where(there, places, 0), axis), x.dtype.type(0))


def conv_transpose_1d(node: Tensor) -> None:
    kernels, grid = (floats(source) for source in node.sources)
    kernels, grid = kernels[0][:, :, None], grid[:, 0, :, None]  # [channels, m, 1, k], [1, channels, 1, n]
    _store_spread(node, kernels, grid, int(node.params["stride0"]))


def conv_transpose_2d(node: Tensor) -> None:
    kernels, grid = (floats(source) for source in node.sources)
    _store_spread(node, kernels, grid, int(node.params["stride"]))


def _store_spread(node: Tensor, kernels: Array, grid: Array, stride: int) -> None:
    """Shapes: kernels [channels, m, height, width], grid [images, channels, height, width]."""
    _, m, kernel_height, kernel_width = kernels.shape
    images, _, height, width = grid.shape
    extents = ((height - 1) * stride + kernel_height, (width - 1) * stride + kernel_width)
    total = np.zeros((images, m, *extents))
    for y, x in np.ndindex(kernel_height, kernel_width):
        window = total[:, :, y : y + (height - 1) * stride + 1 : stride, x : x + (width - 1) * stride + 1 : stride]
        window += np.einsum("cm,nchw->nmhw", kernels[:, :, y, x].astype(np.float64), grid.astype(np.float64))
    store(node, total.reshape(node.ne[::-1]))


def col2im_1d(node: Tensor) -> None:
    stride, m, padding = (int(node.params[name]) for name in ("stride0", "m", "padding0"))
    columns = floats(node.sources[0])[0, 0].astype(np.float64)  # [n, k * m]
    columns = columns.reshape(len(columns), m, -1)
    total = np.zeros((m, node.ne[0]))
    for tap in range(columns.shape[2]):
        places = np.arange(len(columns)) * stride + tap - padding
        there = (places >= 0) & (places < node.ne[0])
        total[:, places[there]] += columns[there, :, tap].T
    store(node, total[None, None])


def pool_1d(node: Tensor) -> None:
    """The mean is that of the elements that are there; of none it is 0."""
    x = floats(node.sources[0])
    result = np.empty(node.ne[::-1], np.float32)
    for place, (first, last) in enumerate(_stretches(node, 0)):
        result[..., place] = _pooled(node, x[..., first:last], max(last - first, 1))
    store(node, result)


def pool_2d(node: Tensor) -> None:
    x = floats(node.sources[0])
    count = int(node.params["size0"]) * int(node.params["size1"])
    result = np.empty(node.ne[::-1], np.float32)
    for y, (top, bottom) in enumerate(_stretches(node, 1)):
        for place, (first, last) in enumerate(_stretches(node, 0)):
            window = x[:, :, top:bottom, first:last].reshape(*x.shape[:2], -1)
            result[:, :, y, place] = _pooled(node, window, count)
    store(node, result)


def _pooled(node: Tensor, elements: Array, count: int) -> Array:
    if node.params["pool"] == Pool.MAX:
        return elements.max(axis=-1, initial=_LEAST)
    return elements.sum(axis=-1, dtype=np.float64) / count


def _stretches(node: Tensor, axis: int) -> Iterator[tuple[int, int]]:
    """Yield the elements [first, last) of an axis that each place of the result sees."""
    size, stride, padding = (int(node.params[f"{name}{axis}"]) for name in ("size", "stride", "padding"))
    extent = node.sources[0].ne[axis]
    for place in range(node.ne[axis]):
        first = place * stride - padding
        yield min(max(first, 0), extent), min(max(first + size, 0), extent)


def upscale(node: Tensor) -> None:
    x = floats(node.sources[0])
    for axis, taps in enumerate(taps_of(node)):
        picked = np.take(x, taps.indices, 3 - axis)  # the axis becomes [n, taps]
        shape = [1] * 5
        shape[3 - axis : 5 - axis] = taps.weights.shape
        x = (picked * taps.weights.reshape(shape)).sum(axis=4 - axis, dtype=np.float64)
    store(node, x)


def pad_reflect_1d(node: Tensor) -> None:
    widths = [(0, 0), (0, 0), (0, 0), (int(node.params["before"]), int(node.params["after"]))]
    store(node, np.pad(floats(node.sources[0]), widths, "reflect"))


def win_part(node: Tensor) -> None:
    x = floats(node.sources[0])[0]  # [n1, n0, c]
    w, across, down = (int(node.params[name]) for name in ("w", "windows0", "windows1"))
    x = np.pad(x, ((0, down * w - x.shape[0]), (0, across * w - x.shape[1]), (0, 0)))
    store(node, x.reshape(down, w, across, w, -1).swapaxes(1, 2).reshape(node.ne[::-1]))


def win_unpart(node: Tensor) -> None:
    w, (c, n0, n1, _) = int(node.params["w"]), node.ne
    windows = floats(node.sources[0]).reshape(-(-n1 // w), -(-n0 // w), w, w, c)
    whole = windows.swapaxes(1, 2).reshape(windows.shape[0] * w, windows.shape[1] * w, c)
    store(node, whole[None, :n1, :n0])


def get_rel_pos(node: Tensor) -> None:
    n = node.ne[1]
    rows = n - 1 - np.arange(n)[None] + np.arange(n)[:, None]
    store(node, floats(node.sources[0])[0, 0, rows][None])


def add_rel_pos(node: Tensor) -> None:
    a, w, h = (floats(source) for source in node.sources)
    both = h[..., :, None] + w[..., None, :]  # [batch, r1, r0, y, x]
    store(node, a + both.reshape(a.shape))
