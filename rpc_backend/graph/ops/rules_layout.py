"""Shape rules of operations that make, widen, shift or overwrite parts of tensors.

Belongs here: what a constant, a place or a shift decides. Must not be here: arithmetic (`rules`).

Source: the preconditions of ggml's tensor constructors.
"""

from __future__ import annotations

import numpy as np

from rpc_backend.graph.element_types import F16, F32
from rpc_backend.graph.ops.functions import Triangle
from rpc_backend.graph.ops.rules import Params, need, need_f32, need_member
from rpc_backend.graph.ops.spec import Shape, Sources
from rpc_backend.graph.tensor import extent_nbytes

_MAX_STEPS = 2**31 - 1


def overwrite(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` with `b` written, or added, at byte `offset` with the strides nb1 to nb3 inside `a`."""
    a, b = sources
    need_f32(a, b)
    need(a.is_contiguous, f"{a} is not contiguous")
    strides = [int(params[f"nb{axis}"]) for axis in (1, 2, 3)]
    offset = int(params["offset"])
    need(min(*strides, offset) >= 0, f"strides {strides} or offset {offset} are negative")
    need(
        all(value % 4 == 0 for value in (*strides, offset)),
        f"strides {strides} or offset {offset} are not multiples of 4",
    )
    end = offset + extent_nbytes(F32, b.ne, (4, strides[0], strides[1], strides[2]))
    need(
        end <= a.nbytes and b.n_elements <= a.n_elements, f"{b} at {offset} with strides {strides} reaches outside {a}"
    )
    return Shape(F32, a.ne)


def pad(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`before{i}` and `after{i}` elements more along axis i: zeros, or the other end where `circular` is 1."""
    a = sources[0]
    need_f32(a)
    before, after = ([int(params[f"{side}{axis}"]) for axis in range(4)] for side in ("before", "after"))
    need(min(*before, *after) >= 0, f"padding {before} and {after} has a negative count")
    need(params["circular"] in (0, 1), f"circular {params['circular']} is neither 0 nor 1")
    need(params["circular"] == 0 or 0 not in a.ne, f"{a} is empty, nothing goes round in it")
    ne = [have + low + high for have, low, high in zip(a.ne, before, after, strict=True)]
    return Shape(F32, (ne[0], ne[1], ne[2], ne[3]))


def roll(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """The elements move by `shift{i}` along axis i, and what leaves at one end comes in at the other."""
    a = sources[0]
    need_f32(a)
    shifts = [int(params[f"shift{axis}"]) for axis in range(4)]
    need(all(abs(shift) < max(n, 1) for shift, n in zip(shifts, a.ne, strict=True)), f"shifts {shifts} are beyond {a}")
    return Shape(F32, a.ne)


def triangle(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """One triangle of square matrices is kept, the rest is 0."""
    a = sources[0]
    need_f32(a)
    need(a.ne[0] == a.ne[1], f"{a} is not square")
    need_member(Triangle, params["triangle"])
    return Shape(F32, a.ne)


def diagonal(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """A row [n] becomes the diagonal of a matrix [n, n] of zeros."""
    a = sources[0]
    need_f32(a)
    need(a.ne[1] == 1, f"{a} has more than one row")
    return Shape(F32, (a.ne[0], a.ne[0], a.ne[2], a.ne[3]))


def diagonal_mask(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """In row i, what lies behind element `n_past` + i is replaced."""
    need_f32(sources[0])
    need(params["n_past"] >= 0, f"n_past {params['n_past']} is negative")
    return Shape(F32, sources[0].ne)


def fill(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Every element becomes `value`; the result is shaped like the source."""
    a = sources[0]
    need(a.type in (F32, F16), f"{a} must be F32 or F16")
    return Shape(a.type, a.ne)


def arange(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`start`, `start` + `step`, … up to but without `stop`."""
    start, stop, step = (np.float32(params[name]) for name in ("start", "stop", "step"))
    text = f"{start} to {stop} by {step}"
    need(bool(np.isfinite(start) and np.isfinite(stop) and stop > start and step > 0), f"{text} has no end")
    with np.errstate(over="ignore"):
        count = np.ceil((stop - start) / step)
    need(bool(count <= _MAX_STEPS), f"{text} are {count} numbers, more than {_MAX_STEPS}")
    return Shape(F32, (int(count), 1, 1, 1))


def timestep_embedding(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Each of `timesteps` [n] becomes cosines and sines of `dim` / 2 frequencies each: [dim, n]."""
    timesteps, dim = sources[0], int(params["dim"])
    need_f32(timesteps)
    need(timesteps.ne[1:] == (1, 1, 1), f"{timesteps} is not one row")
    need(dim > 0 and params["max_period"] > 0, f"dim {dim} or max_period {params['max_period']} is not above 0")
    return Shape(F32, (dim, timesteps.ne[0], 1, 1))
