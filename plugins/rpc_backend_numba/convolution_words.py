"""A convolution as numbers that plans and kernels share: where each lies.

Belongs here: positions in the array of int64 words that both sides read. Must not be here: filling it
(`lowering.images`) or reading it (`kernels.images`).
"""

from __future__ import annotations

(SIZES, STRIDES, PADDINGS, DILATIONS, GRID, GRID_STEPS) = range(0, 18, 3)
(CHANNEL_STEP, IMAGE_STEP, CHANNELS, DEPTHS, N_KERNELS, GROUP_STEP) = range(18, 24)
KERNEL_STEPS, KERNEL_CHANNEL_STEP, KERNEL_STEP, CONVOLUTION_WORDS = 24, 27, 28, 29
"""Of each axis: extents of a kernel, strides, paddings, dilations, extents of the grid, its steps in bytes. Then steps
between channels and images, the number of channels; places along the third axis, or 0 without one; the number of
kernels and the step of the grid from one kernel to the next; steps of the kernels by axis, channel and kernel."""
