"""Shape rules of what DeepSeek models add: scores of cached tokens, and residual streams that are mixed.

Belongs here: LIGHTNING_INDEXER, DSV4_HC_*. Must not be here: attention (`rules`).

Source: the preconditions of ggml's tensor constructors.
"""

from __future__ import annotations

from rpc_backend.graph.element_types import F16, F32
from rpc_backend.graph.ops.rules import Params, need, need_f32
from rpc_backend.graph.ops.spec import Shape, Sources

_STREAMS = 4
_MAX_ROUNDS = 1 << 10


def lightning_indexer(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`q` [s, heads, tokens, streams], `k` [s, 1, kv, streams], `weights` [heads, tokens, 1, streams], `mask` F16 [kv,
    tokens, 1, any]: per token and cached token the weighed sum over heads of q · k where that is above 0, plus the
    mask: [kv, tokens, 1, streams]."""
    q, k, weights, mask = sources
    need_f32(q, weights)
    size, heads, tokens, streams = q.ne
    need(k.ne[:2] == (size, 1) and k.ne[3] == streams, f"{k} does not fit {q}")
    need(weights.ne == (heads, tokens, 1, streams), f"{weights} has no weight per head and token of {q}")
    need(mask.type is F16 and mask.ne[:3] == (k.ne[2], tokens, 1), f"{mask} is not an F16 mask of {q} and {k}")
    need(mask.ne[3] > 0 and streams % mask.ne[3] == 0, f"{mask} does not repeat over {streams} streams")
    return Shape(F32, (k.ne[2], tokens, 1, streams))


def hc_comb(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`mixes` [24, tokens] times the third `scale` plus `base` [24], of which the last 16 are a matrix per token: its
    rows become shares, then columns and rows are divided by their sums in turn, `n_iter` times: [4, 4, tokens]."""
    mixes, scale, base = sources
    need_f32(*sources)
    width = (2 + _STREAMS) * _STREAMS
    need(mixes.ne[0] == width and mixes.ne[2:] == (1, 1), f"{mixes} has no {width} numbers per token")
    need(scale.ne[0] >= 3 and scale.ne[1:] == (1, 1, 1), f"{scale} has no three factors")
    need(base.ne == (width, 1, 1, 1), f"{base} is not a row of {width}")
    need(0 < params["n_iter"] <= _MAX_ROUNDS, f"n_iter {params['n_iter']} is not between 1 and {_MAX_ROUNDS}")
    return Shape(F32, (_STREAMS, _STREAMS, mixes.ne[1], 1))


def hc_pre(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """The streams of `x` [n, streams, tokens] weighed by `weights` [streams, tokens], or with `gated` by the sigmoid of
    `weights` shaped like `x`, added up and multiplied by `scale`: [n, tokens]."""
    x, weights = sources
    need_f32(x, weights)
    need(params["gated"] in (0, 1), f"gated {params['gated']} is neither 0 nor 1")
    wanted = x.ne if params["gated"] else (x.ne[1], x.ne[2], 1, 1)
    need(x.ne[1] > 0 and x.ne[3] == 1 and weights.ne == wanted, f"{weights} does not fit {x}")
    return Shape(F32, (x.ne[0], x.ne[2], 1, 1))


def hc_post(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`x` [n, tokens] times `post` [streams, tokens], plus the streams of `residual` [n, streams, tokens], which `comb`
    [streams, streams, tokens] mixes if it is given: [n, streams, tokens]."""
    x, residual, post, *comb = sources
    need_f32(*sources)
    n, tokens = x.ne[:2]
    streams = residual.ne[1]
    need(streams > 0 and residual.ne == (n, streams, tokens, 1) and x.ne[2:] == (1, 1), f"{residual} does not fit {x}")
    need(post.ne == (streams, tokens, 1, 1), f"{post} has no factor per stream and token of {residual}")
    need(all(one.ne == (streams, streams, tokens, 1) for one in comb), f"{sources[-1]} does not mix {residual}")
    return Shape(F32, residual.ne)
