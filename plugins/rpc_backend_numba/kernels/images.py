"""Convolutions, pools, resampling and windows of images, sounds and other grids.

Belongs here: IM2COL, IM2COL_3D, COL2IM_1D, CONV_*, POOL_*, UPSCALE, PAD_REFLECT_1D, WIN_PART, WIN_UNPART. Must not be
here: short convolutions with a state (`states`).

All go element by element; sums are taken in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from rpc_backend_numba.convolution_words import (
    CHANNEL_STEP,
    CHANNELS,
    DEPTHS,
    DILATIONS,
    GRID,
    GRID_STEPS,
    GROUP_STEP,
    IMAGE_STEP,
    KERNEL_CHANNEL_STEP,
    KERNEL_STEP,
    KERNEL_STEPS,
    N_KERNELS,
    PADDINGS,
    SIZES,
    STRIDES,
)
from rpc_backend_numba.kernels.access import (
    I64,
    address,
    element_code,
    extent,
    n_rows,
    param,
    row_address,
    share,
    split_row,
    stride,
)
from rpc_backend_numba.kernels.elements import make_any_element
from rpc_backend_numba.simd import helper, load, load_at, store
from rpc_backend_numba.simd.layer import Layer

_F32, _F64 = types.float32, types.float64
_LEAST = float(-np.finfo(np.float32).max)


@helper
def _word(args, index):
    """A number of the description of a convolution, to which parameter 0 points."""
    return load_at(I64, param(args, 0), index)


@helper
def _met(args, place, tap, axis):
    """Where an element of a kernel meets the grid along an axis; -1 outside."""
    at = place * _word(args, STRIDES + axis) + tap * _word(args, DILATIONS + axis) - _word(args, PADDINGS + axis)
    return at if 0 <= at < _word(args, GRID + axis) else -1


def make_patches(layer: Layer) -> Any:
    """Return the kernel of IM2COL: tensor 1 the grid; rows of the result are patches, places along axes 1 and 2, images
    and depths along axis 3."""
    load_any, store_any = make_any_element(layer)

    def patches(args, ith, nth):
        width, height, depth = _word(args, SIZES), _word(args, SIZES + 1), _word(args, SIZES + 2)
        step, code, out_code = stride(args, 0, 0), element_code(args, 1), element_code(args, 0)
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            image, place = i3 // _word(args, DEPTHS), i3 % _word(args, DEPTHS)
            out = row_address(args, 0, i1, i2, i3)
            for channel in range(_word(args, CHANNELS)):
                base = address(args, 1) + image * _word(args, IMAGE_STEP) + channel * _word(args, CHANNEL_STEP)
                for tap in range(width * height * depth):
                    x = _met(args, i1, tap % width, 0)
                    y = _met(args, i2, tap // width % height, 1)
                    z = _met(args, place, tap // width // height, 2)
                    value = _F32(0.0)
                    if x >= 0 and y >= 0 and z >= 0:
                        at = x * _word(args, GRID_STEPS) + y * _word(args, GRID_STEPS + 1)
                        value = load_any(code, base + at + z * _word(args, GRID_STEPS + 2))
                    store_any(out_code, out, value)
                    out += step

    return patches


def make_convolve(layer: Layer) -> Any:
    """Return the kernel of CONV_2D, CONV_2D_DW and CONV_3D: tensors 1 the grid, in F32, 2 the kernels."""
    load_any, _ = make_any_element(layer)

    @helper
    def one_channel(args, source, kernel, x, y, z):
        """The sum over a kernel of one channel at a place."""
        total, code = 0.0, element_code(args, 2)
        for k2 in range(_word(args, SIZES + 2)):
            at2 = _met(args, z, k2, 2)
            if at2 < 0:
                continue
            for k1 in range(_word(args, SIZES + 1)):
                at1 = _met(args, y, k1, 1)
                if at1 < 0:
                    continue
                row = source + at2 * _word(args, GRID_STEPS + 2) + at1 * _word(args, GRID_STEPS + 1)
                weights = kernel + k2 * _word(args, KERNEL_STEPS + 2) + k1 * _word(args, KERNEL_STEPS + 1)
                for k0 in range(_word(args, SIZES)):
                    at0 = _met(args, x, k0, 0)
                    if at0 >= 0:
                        weight = load_any(code, weights + k0 * _word(args, KERNEL_STEPS))
                        total += _F64(weight) * _F64(load(_F32, row + at0 * _word(args, GRID_STEPS)))
        return total

    def convolve(args, ith, nth):
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            z, m, image = 0, i2, i3
            if _word(args, DEPTHS):
                z, m, image = i2, i3 % _word(args, N_KERNELS), i3 // _word(args, N_KERNELS)
            source = address(args, 1) + image * _word(args, IMAGE_STEP) + m * _word(args, GROUP_STEP)
            kernel, out = address(args, 2) + m * _word(args, KERNEL_STEP), row_address(args, 0, i1, i2, i3)
            for i in range(extent(args, 0, 0)):
                total = 0.0
                for channel in range(_word(args, CHANNELS)):
                    grid = source + channel * _word(args, CHANNEL_STEP)
                    total += one_channel(args, grid, kernel + channel * _word(args, KERNEL_CHANNEL_STEP), i, i1, z)
                store(out + i * stride(args, 0, 0), _F32(total))

    return convolve


def make_spread(layer: Layer) -> Any:
    """Return the kernel of CONV_TRANSPOSE_1D and _2D: tensors 1 the grid [n0, n1, channels, images], in F32, 2 the
    kernels [k0, k1, m, channels]; parameter 0 is the stride."""
    load_any, _ = make_any_element(layer)

    @helper
    def one_pair(args, k0, k1, at0, at1, m, image):
        """The sum over channels of an element of a kernel and one of the grid."""
        total, code = 0.0, element_code(args, 2)
        for channel in range(extent(args, 1, 2)):
            weight = load_any(code, row_address(args, 2, k1, m, channel) + k0 * stride(args, 2, 0))
            total += _F64(weight) * _F64(
                load(_F32, row_address(args, 1, at1, channel, image) + at0 * stride(args, 1, 0))
            )
        return total

    def spread(args, ith, nth):
        step = param(args, 0)
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, m, image = split_row(row, args, 0)
            out = row_address(args, 0, i1, m, image)
            for i in range(extent(args, 0, 0)):
                total = 0.0
                for k1 in range(i1 % step, min(extent(args, 2, 1), i1 + 1), step):
                    at1 = (i1 - k1) // step
                    if at1 >= extent(args, 1, 1):
                        continue
                    for k0 in range(i % step, min(extent(args, 2, 0), i + 1), step):
                        at0 = (i - k0) // step
                        if at0 < extent(args, 1, 0):
                            total += one_pair(args, k0, k1, at0, at1, m, image)
                store(out + i * stride(args, 0, 0), _F32(total))

    return spread


def make_columns(layer: Layer) -> Any:
    """Return the kernel of COL2IM_1D: tensor 1 [k * m, n]; parameters are the stride and the padding."""
    load_any, store_any = make_any_element(layer)

    def columns(args, ith, nth):
        step, padding, size = param(args, 0), param(args, 1), extent(args, 1, 0) // extent(args, 0, 1)
        extent0 = extent(args, 0, 0)
        first, last = share(extent0 * extent(args, 0, 1), ith, nth)
        for item in range(first, last):
            m, i = item // extent0, item % extent0
            total, place = 0.0, i + padding
            for tap in range(place % step, min(size, place + 1), step):
                column = (place - tap) // step
                if column < extent(args, 1, 1):
                    source = row_address(args, 1, column, 0, 0) + (m * size + tap) * stride(args, 1, 0)
                    total += _F64(load_any(element_code(args, 1), source))
            out = row_address(args, 0, m, 0, 0) + i * stride(args, 0, 0)
            store_any(element_code(args, 0), out, _F32(total))

    return columns


POOL_SIZES, POOL_STRIDES, POOL_PADDINGS, POOL_TAKES_MEAN, POOL_COUNT = 0, 2, 4, 6, 7
"""Parameters of a pool; by POOL_COUNT the sum is divided, 0 is the number of elements that are there."""


def make_pool(layer: Layer) -> Any:
    """Return the kernel of POOL_1D and POOL_2D."""
    load_any, _ = make_any_element(layer)

    @helper
    def stretch(args, place, axis):
        """The elements [first, last) of the source that a place sees."""
        start, limit = (
            place * param(args, POOL_STRIDES + axis) - param(args, POOL_PADDINGS + axis),
            extent(args, 1, axis),
        )
        return min(max(start, 0), limit), min(max(start + param(args, POOL_SIZES + axis), 0), limit)

    def pool(args, ith, nth):
        code, step, takes_mean = element_code(args, 1), stride(args, 1, 0), param(args, POOL_TAKES_MEAN)
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            top, bottom = stretch(args, i1, 1)
            out = row_address(args, 0, i1, i2, i3)
            for i in range(extent(args, 0, 0)):
                left, right = stretch(args, i, 0)
                total, most = 0.0, _F32(_LEAST)
                for y in range(top, bottom):
                    source = row_address(args, 1, y, i2, i3)
                    for x in range(left, right):
                        value = load_any(code, source + x * step)
                        total += _F64(value)
                        if value > most:
                            most = value
                count = param(args, POOL_COUNT)
                if count == 0:
                    count = max((bottom - top) * (right - left), 1)
                found = _F32(total / _F64(count)) if takes_mean else most
                store(out + i * stride(args, 0, 0), found)

    return pool


INDICES, WEIGHTS, TAPS, INDICES_2, INDICES_3 = 0, 1, 2, 6, 7
"""Parameters of `resample`: of axes 0 and 1 each the addresses of indices (int64) and weights (float32) and the number
of taps per element; of axes 2 and 3 the address of one index per element."""


def make_resample(layer: Layer) -> Any:
    """Return the kernel of UPSCALE and PAD_REFLECT_1D: tensor 1 is F32; each element is a weighed sum of some of it."""

    @helper
    def tap(args, axis, index, number):
        """An index along an axis, and its weight."""
        place = index * param(args, TAPS + 3 * axis) + number
        weight = load_at(_F32, param(args, WEIGHTS + 3 * axis), place)
        return load_at(I64, param(args, INDICES + 3 * axis), place), _F64(weight)

    def resample(args, ith, nth):
        n_across, n_down = param(args, TAPS), param(args, TAPS + 3)
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            from2, from3 = load_at(I64, param(args, INDICES_2), i2), load_at(I64, param(args, INDICES_3), i3)
            out = row_address(args, 0, i1, i2, i3)
            for i in range(extent(args, 0, 0)):
                total = 0.0
                for down in range(n_down):
                    y, weight1 = tap(args, 1, i1, down)
                    source = row_address(args, 1, y, from2, from3)
                    for across in range(n_across):
                        x, weight0 = tap(args, 0, i, across)
                        total += _F64(load(_F32, source + x * stride(args, 1, 0))) * weight0 * weight1
                store(out + i * stride(args, 0, 0), _F32(total))

    return resample


WINDOW, WINDOWS_ACROSS, PUTS_TOGETHER = 0, 1, 2
"""Parameters of `windows`: the size of a window, how many lie side by side, whether they are put together or cut."""


def make_windows(layer: Layer) -> Any:
    """Return the kernel of WIN_PART and WIN_UNPART; tensor 1 is F32."""

    def windows(args, ith, nth):
        size, across = param(args, WINDOW), param(args, WINDOWS_ACROSS)
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            x, y, window = i3 % across * size + i1, i3 // across * size + i2, 0
            if param(args, PUTS_TOGETHER):
                x, y, window = i1 % size, i2 % size, i2 // size * across + i1 // size
            is_there = x < extent(args, 1, 1) and y < extent(args, 1, 2)
            out = row_address(args, 0, i1, i2, i3)
            for i in range(extent(args, 0, 0)):
                value = _F32(0.0)
                if is_there:
                    value = load(_F32, row_address(args, 1, x, y, window) + i * stride(args, 1, 0))
                store(out + i * stride(args, 0, 0), value)

    return windows
