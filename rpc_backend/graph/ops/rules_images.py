"""Shape rules of operations on images, sounds and other grids: convolutions, pools, resampling, windows.

Belongs here: what strides, paddings and kernels decide. Must not be here: short convolutions with a state
(`rules_states`), padding with zeros (`rules_layout`).

Source: the preconditions of ggml's tensor constructors. A grid is [width, height, …]; numbers behind names of
parameters are axes.
"""

from __future__ import annotations

from rpc_backend.graph.element_types import F16, F32
from rpc_backend.graph.ops.functions import Interpolation, Pool
from rpc_backend.graph.ops.rules import Params, need, need_f32, need_floats, need_member, wanted
from rpc_backend.graph.ops.spec import Shape, Sources
from rpc_backend.graph.tensor import Extents, Tensor

ALIGN_CORNERS, ANTIALIAS = 1 << 8, 1 << 9
"""Flags of UPSCALE beside the interpolation."""

_MAX_RESAMPLED = 1 << 20  # tables as long as an axis are made for it


def _convolved(grid: Tensor, kernel: Tensor, params: Params, n_axes: int) -> list[int]:
    """Return the extents of a convolved grid along its first axes."""
    need(0 not in (*grid.ne, *kernel.ne), f"{grid} or {kernel} is empty")
    found: list[int] = []
    for axis in range(n_axes):
        stride, padding, dilation = (int(params[f"{name}{axis}"]) for name in ("stride", "padding", "dilation"))
        text = f"stride {stride}, padding {padding}, dilation {dilation} of axis {axis}"
        need(stride > 0 and padding >= 0 and dilation > 0, f"{text} cannot be")
        room = grid.ne[axis] + 2 * padding - dilation * (kernel.ne[axis] - 1) - 1
        need(room >= 0, f"{kernel} does not fit into {grid} with {text}")
        found.append(room // stride + 1)
    return found


def _need_kernel(kernel: Tensor, grid: Tensor) -> None:
    need(kernel.type in (F32, F16), f"{kernel} must be F32 or F16")
    need_f32(grid)


def _patch_type(asked: Shape | None, grid: Tensor) -> Shape:
    want = wanted(asked)
    need(want.type in (F32, F16) and grid.type in (F32, F16), f"patches of {grid} must be F32 or F16")
    return want


def im2col(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """The patches of `b` that a kernel shaped like `a` meets, in the asked type. Of one axis: `a` [k, channels, any],
    `b` [n, channels, any]: [k * channels, places, any]. With `is_2d` of two: `a` [k0, k1, channels, any], `b` [n0, n1,
    channels, any]: [k0 * k1 * channels, places0, places1, any]."""
    a, b = sources
    want = _patch_type(asked, b)
    need(params["is_2d"] in (0, 1), f"is_2d {params['is_2d']} is neither 0 nor 1")
    if params["is_2d"]:
        need(a.ne[2] == b.ne[2], f"{a} and {b} differ in their channels")
        places = _convolved(b, a, params, 2)
        return Shape(want.type, (a.ne[0] * a.ne[1] * a.ne[2], places[0], places[1], b.ne[3]))
    need(a.ne[1] == b.ne[1] and b.ne[3] == 1, f"{a} and {b} differ in their channels, or {b} has four axes")
    return Shape(want.type, (a.ne[0] * a.ne[1], _convolved(b, a, params, 1)[0], b.ne[2], 1))


def im2col_3d(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """As IM2COL of three axes: `a` [k0, k1, k2, channels * any], `b` [n0, n1, n2, channels * n]:
    [k0 * k1 * k2 * channels, places0, places1, places2 * n]."""
    a, b = sources
    want = _patch_type(asked, b)
    channels = int(params["channels"])
    need(
        channels > 0 and a.ne[3] % channels == 0 and b.ne[3] % channels == 0,
        f"{a} and {b} are not of {channels} channels",
    )
    places = _convolved(b, a, params, 3)
    rest = places[2] * (b.ne[3] // channels)
    return Shape(want.type, (a.ne[0] * a.ne[1] * a.ne[2] * channels, places[0], places[1], rest))


def conv_2d(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Kernels `a` [k0, k1, channels, m] over `b` [n0, n1, channels, n]: [places0, places1, m, n]."""
    a, b = sources
    _need_kernel(a, b)
    need(a.ne[2] == b.ne[2], f"{a} and {b} differ in their channels")
    places = _convolved(b, a, params, 2)
    return Shape(F32, (places[0], places[1], a.ne[3], b.ne[3]))


def conv_2d_dw(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """A kernel for each channel, `a` [k0, k1, 1, channels] over `b` [n0, n1, channels, n]: [places0, places1,
    channels, n]."""
    a, b = sources
    _need_kernel(a, b)
    need(a.ne[2] == 1 and a.ne[3] == b.ne[2], f"{a} is not one kernel per channel of {b}")
    places = _convolved(b, a, params, 2)
    return Shape(F32, (places[0], places[1], b.ne[2], b.ne[3]))


def conv_3d(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Kernels `a` [k0, k1, k2, channels * m] over `b` [n0, n1, n2, channels * n]: [places0, places1, places2,
    m * n]."""
    a, b = sources
    _need_kernel(a, b)
    channels, n, m = (int(params[name]) for name in ("channels", "n", "m"))
    need(min(channels, n, m) > 0, f"channels {channels}, n {n} or m {m} is not above 0")
    need(a.ne[3] == channels * m and b.ne[3] == channels * n, f"{a} and {b} are not of {channels} channels")
    places = _convolved(b, a, params, 3)
    return Shape(F32, (places[0], places[1], places[2], m * n))


def _spread(grid: Tensor, kernel: Tensor, stride: int, n_axes: int) -> list[int]:
    """Return the extents of a grid that a transposed convolution made larger."""
    need(0 not in (*grid.ne, *kernel.ne), f"{grid} or {kernel} is empty")
    need(stride > 0, f"stride {stride} is not above 0")
    return [(grid.ne[axis] - 1) * stride + kernel.ne[axis] for axis in range(n_axes)]


def conv_transpose_1d(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Each element of `b` [n, channels] adds its kernel of `a` [k, m, channels] to the result
    [(n - 1) * stride + k, m]; ggml knows padding 0 and dilation 1 only."""
    a, b = sources
    _need_kernel(a, b)
    need(a.ne[3] == 1 and b.ne[2:] == (1, 1) and a.ne[2] == b.ne[1], f"{a} and {b} do not fit")
    need(params["padding0"] == 0 and params["dilation0"] == 1, "only padding 0 and dilation 1 are known")
    return Shape(F32, (_spread(b, a, int(params["stride0"]), 1)[0], a.ne[1], 1, 1))


def conv_transpose_2d(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Each element of `b` [n0, n1, channels, n] adds its kernel of `a` [k0, k1, m, channels] to the result
    [(n0 - 1) * stride + k0, (n1 - 1) * stride + k1, m, n]."""
    a, b = sources
    _need_kernel(a, b)
    need(a.ne[3] == b.ne[2], f"{a} and {b} differ in their channels")
    extents = _spread(b, a, int(params["stride"]), 2)
    return Shape(F32, (extents[0], extents[1], a.ne[2], b.ne[3]))


def col2im_1d(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Columns `a` [k * m, n] added up where a transposed convolution puts them, less `padding` at both ends:
    [(n - 1) * stride + k - 2 * padding, m]."""
    a = sources[0]
    need_floats(a)
    stride, m, padding = (int(params[name]) for name in ("stride0", "m", "padding0"))
    need(stride > 0 and m > 0 and padding >= 0, f"stride {stride}, m {m} or padding {padding} cannot be")
    need(0 not in a.ne and a.ne[2:] == (1, 1) and a.ne[0] % m == 0, f"{a} has no columns of {m} kernels")
    extent = (a.ne[1] - 1) * stride + a.ne[0] // m - 2 * padding
    need(extent > 0, f"nothing is left of {a} with padding {padding}")
    return Shape(a.type, (extent, m, 1, 1))


def _pooled(a: Tensor, params: Params, n_axes: int) -> Shape:
    need(a.type in (F32, F16) and 0 not in a.ne, f"{a} must be F32 or F16, and not empty")
    need_member(Pool, params["pool"])
    ne = list(a.ne)
    for axis in range(n_axes):
        size, stride, padding = (int(params[f"{name}{axis}"]) for name in ("size", "stride", "padding"))
        text = f"size {size}, stride {stride}, padding {padding} of axis {axis}"
        need(size > 0 and stride > 0 and padding >= 0, f"{text} cannot be")
        room = a.ne[axis] + 2 * padding - size
        need(room >= 0, f"{a} is smaller than a pool of {text}")
        ne[axis] = room // stride + 1
    return Shape(F32, (ne[0], ne[1], ne[2], ne[3]))


def pool_1d(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """The largest element of each stretch of a row, or the mean of those that are there."""
    return _pooled(sources[0], params, 1)


def pool_2d(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """The largest element of each window, or the sum over size0 * size1; what is outside counts as 0."""
    return _pooled(sources[0], params, 2)


def upscale(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` with the asked extents. `mode` is an interpolation along the first two axes, plus 256 to align the corners
    and 512 to smooth what becomes smaller (BILINEAR only); the other axes take the nearest."""
    a, want = sources[0], wanted(asked)
    need_f32(a)
    mode = int(params["mode"])
    kind, flags = mode & 0xFF, mode & ~0xFF
    need_member(Interpolation, kind)
    need(flags & ~(ALIGN_CORNERS | ANTIALIAS) == 0, f"mode {mode} has unknown flags")
    need(not flags & ANTIALIAS or kind == Interpolation.BILINEAR, "only BILINEAR is smoothed")
    need(0 not in (*a.ne, *want.ne), f"{a} or {list(want.ne)} is empty")
    need(max(*a.ne, *want.ne) <= _MAX_RESAMPLED, f"{a} or {list(want.ne)} has an axis above {_MAX_RESAMPLED}")
    return Shape(F32, want.ne)


def pad_reflect(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Rows with `before` and `after` elements more, mirrored at their ends."""
    a = sources[0]
    need_f32(a)
    before, after = int(params["before"]), int(params["after"])
    need(0 <= before < a.ne[0] and 0 <= after < a.ne[0], f"padding {before} and {after} does not fit {a}")
    return Shape(F32, (a.ne[0] + before + after, *a.ne[1:]))


def win_part(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` [c, n0, n1] cut into `windows0` * `windows1` windows [c, w, w], filled up with zeros."""
    a = sources[0]
    need_f32(a)
    w, windows = int(params["w"]), [int(params[f"windows{axis}"]) for axis in range(2)]
    need(w > 0 and a.ne[3] == 1, f"w {w} is not above 0, or {a} has four axes")
    need(windows == [-(-a.ne[axis] // w) for axis in (1, 2)], f"{a} is not {windows} windows of {w}")
    return Shape(F32, (a.ne[0], w, w, windows[0] * windows[1]))


def win_unpart(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Windows `a` [c, w, w, any] put together to the asked extents [c, n0, n1], without what filled them up."""
    a, want = sources[0], wanted(asked)
    need_f32(a)
    w = int(params["w"])
    need(w > 0 and a.ne[1:3] == (w, w), f"{a} has no windows of {w}")
    need(want.ne[0] == a.ne[0] and want.ne[3] == 1, f"{list(want.ne)} is not put together from {a}")
    need(-(-want.ne[1] // w) * -(-want.ne[2] // w) == a.ne[3], f"{list(want.ne)} is not {a.ne[3]} windows of {w}")
    return Shape(F32, want.ne)


def get_rel_pos(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Row n - 1 - i1 + i2 of `a` [c, 2 n - 1] for each pair: [c, n, n] of F16."""
    a = sources[0]
    need(a.type is F16 and a.ne[2:] == (1, 1) and a.ne[1] % 2 == 1, f"{a} is not an odd number of rows of F16")
    n = (a.ne[1] + 1) // 2
    return Shape(F16, (a.ne[0], n, n, 1))


def add_rel_pos(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` [n * n, r0 * r1, batch] plus `w` and `h` [n, r0, r1, batch]: element x + n * y of a row gains element x of
    `w` and element y of `h`."""
    a, w, h = sources
    need_f32(a, w, h)
    fits: Extents = (w.ne[0] ** 2, w.ne[1] * w.ne[2], w.ne[3], 1)
    need(w.ne == h.ne and a.ne == fits and a.is_contiguous, f"{a}, {w} and {h} do not fit, or {a} is not contiguous")
    return Shape(F32, a.ne)
