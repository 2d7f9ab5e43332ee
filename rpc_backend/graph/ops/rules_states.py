"""Shape rules of operations that carry a state from token to token.

Belongs here: short convolutions, linear attention, and the solver that its chunked form needs. Must not be here:
attention over a cache (`rules`).

Source: the preconditions of ggml's tensor constructors.
"""

from __future__ import annotations

import math

from rpc_backend.graph.element_types import F32, I32
from rpc_backend.graph.ops.rules import Params, need, need_f32
from rpc_backend.graph.ops.spec import Shape, Sources

_MAX_SNAPSHOTS = 2**20


def square_solve(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """X of `a` X = `b`, `a` [n, n, …] lower triangular, `b` and X [k, n, …]."""
    a, b = sources
    need_f32(a, b)
    need(a.ne[0] == a.ne[1] and a.ne[1:] == b.ne[1:], f"{a} and {b} do not fit")
    return Shape(F32, b.ne)


def ssm_conv(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`x` [d_conv - 1 + tokens, channels, streams], each channel convolved with its row of `kernel`
    [d_conv, channels]: [channels, tokens, streams]."""
    x, kernel = sources
    need_f32(x, kernel)
    need(x.ne[3] == 1 and kernel.ne[2:] == (1, 1) and kernel.ne[1] == x.ne[1], f"{x} and {kernel} do not fit")
    n_tokens = x.ne[0] - kernel.ne[0] + 1
    need(kernel.ne[0] > 0 and n_tokens >= 0, f"{x} is shorter than {kernel}")
    return Shape(F32, (x.ne[1], n_tokens, x.ne[2], 1))


def gated_delta_net(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`q`, `k` [s, heads_k, tokens, streams_k], `v` [s, heads, tokens, streams], `gate` [1 or s, heads, tokens,
    streams], `beta` [1, heads, tokens, streams], `state` [s, s, heads, streams]: the outputs
    [s, heads, tokens, streams], then `snapshots` states, the newest first, as rows of s * heads."""
    need_f32(*sources)
    q, k, v, gate, beta, state = sources
    size, heads, tokens, streams = v.ne
    repeats = q.ne[1] > 0 and q.ne[3] > 0 and heads % q.ne[1] == 0 and streams % q.ne[3] == 0
    need(q.ne == k.ne and q.ne[0] == size and q.ne[2] == tokens and repeats, f"{q} and {k} do not fit {v}")
    need(gate.ne[0] in (1, size) and gate.ne[1:] == v.ne[1:], f"{gate} has no gate per head and token of {v}")
    need(beta.ne == (1, heads, tokens, streams), f"{beta} has no factor per head and token of {v}")
    need(state.ne == (size, size, heads, streams), f"{state} is not a state per head of {v}")
    snapshots = int(params["snapshots"])
    _need_snapshots(snapshots)
    return Shape(F32, (size * heads, (tokens + snapshots * size) * streams, 1, 1))


def _need_snapshots(count: int) -> None:
    need(0 < count <= _MAX_SNAPSHOTS, f"{count} snapshots are not between 1 and {_MAX_SNAPSHOTS}")


def gated_linear_attn(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`k`, `v`, `q`, `gate` [s, heads, tokens], `state` of s * s * heads elements per stream, streams along its second
    axis: the outputs, then the new states, as rows of s * heads."""
    need_f32(*sources)
    k, *others, state = sources
    size, heads, tokens, _ = k.ne
    need(k.ne[3] == 1 and all(other.ne == k.ne for other in others), f"{k} and its fellows differ in shape")
    streams = state.ne[1]
    divides = streams > 0 and tokens % streams == 0
    need(divides and state.ne == (size * size * heads, streams, 1, 1), f"{state} is not a state per stream of {k}")
    return Shape(F32, (size * heads, tokens + size * streams, 1, 1))


def ssm_scan(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`states` [n, dim, heads, any], `x` [dim, heads, tokens, streams], `step` [heads, tokens, streams], `decay`
    [1 or n, heads], `b`, `c` [n, groups, tokens, streams], `ids` I32 [streams], which name the states to begin with:
    the outputs, shaped like `x`, then `snapshots` states per stream, the newest first, as one row."""
    *floats, ids = sources
    need_f32(*floats)
    states, x, step, decay, b, c = floats
    size, dim, heads, _ = states.ne
    tokens, streams = x.ne[2:]
    need(x.ne[:2] == (dim, heads), f"{x} does not fit {states}")
    need(step.ne == (heads, tokens, streams, 1), f"{step} has no step per head and token of {x}")
    need(decay.ne[0] in (1, size) and decay.ne[1:] == (heads, 1, 1), f"{decay} has no decay per head of {states}")
    groups = b.ne[1]
    need(b.ne == c.ne and b.ne == (size, groups, tokens, streams), f"{b} and {c} do not fit {states} and {x}")
    need(groups > 0 and heads % groups == 0, f"{heads} heads are no whole number for each of {groups} groups")
    need(ids.type is I32 and ids.ne == (streams, 1, 1, 1), f"{ids} has no state per stream of {x}")
    snapshots = int(params["snapshots"])
    _need_snapshots(snapshots)
    need(snapshots == 1 or decay.ne[0] == 1, f"snapshots need one decay per head, not {decay}")
    return Shape(F32, (math.prod(x.ne) + snapshots * size * dim * heads * streams, 1, 1, 1))


def rwkv(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`k`, `v`, `r`, `decay` [s, heads, tokens] and `first` of s * heads (WKV6), or `r`, `decay`, `k`, `v`, `a`, `b`
    (WKV7), and `state` of s * s * heads elements per stream, streams along its second axis: the outputs, then the new
    states, as rows of s * heads."""
    need_f32(*sources)
    *rows, state = sources
    if len(rows) == 5:
        first = rows.pop(3)
        need(first.n_elements == rows[0].ne[0] * rows[0].ne[1], f"{first} has no factor per element of a head")
    one = rows[0]
    size, heads, tokens, _ = one.ne
    need(one.ne[3] == 1 and all(other.ne == one.ne for other in rows), f"{one} and its fellows differ in shape")
    streams = state.ne[1]
    divides = streams > 0 and tokens % streams == 0
    need(divides and state.n_elements == size * size * heads * streams, f"{state} is not a state per stream of {one}")
    return Shape(F32, (size * heads, tokens + size * streams, 1, 1))
