"""Attention: rotary positions, softmax over scores, and the whole of it in one.

Belongs here: ROPE, SOFT_MAX, FLASH_ATTN_EXT. Must not be here: anything else.

Source: ggml's CPU backend; YaRN is https://arxiv.org/abs/2309.00071, ALiBi https://arxiv.org/abs/2108.12409.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rpc_backend.plugin_api import RopeMode, Tensor
from rpc_backend_reference.arrays import Array, cells, floats, store


def rope(node: Tensor) -> None:
    """Rotate the first n_dims elements of each head in pairs by the angle of its token; the rest is kept."""
    params = node.params
    n_dims = int(params["n_dims"])
    x = floats(node.sources[0]).astype(np.float64)
    factors = floats(node.sources[2])[0, 0, 0, : n_dims // 2] if len(node.sources) == 3 else 1.0
    positions = cells(node.sources[1])[0, 0, 0].astype(np.float64)
    cos, sin = _rotations(positions, factors, params)
    first, second = _pairs(n_dims, RopeMode(int(params["mode"])))
    a, b = x[..., first].copy(), x[..., second].copy()
    x[..., first] = a * cos - b * sin
    x[..., second] = a * sin + b * cos
    store(node, x)


def _pairs(n_dims: int, mode: RopeMode) -> tuple[slice, slice]:
    if mode is RopeMode.NEOX:
        return slice(0, n_dims // 2), slice(n_dims // 2, n_dims)
    return slice(0, n_dims, 2), slice(1, n_dims, 2)


def _rotations(positions: Array, factors: Array | float, params: Mapping[str, int | float]) -> tuple[Array, Array]:
    """Return cos and sin, both with the magnitude in them.

    Shapes: positions [tokens]; factors [n_dims / 2]; results [tokens, 1, n_dims / 2].
    """
    n_dims, freq_scale, ext_factor = int(params["n_dims"]), params["freq_scale"], params["ext_factor"]
    pair = np.arange(n_dims // 2)
    extrapolated = positions[:, None, None] * np.float64(params["freq_base"]) ** (-2.0 * pair / n_dims) / factors
    theta = freq_scale * extrapolated
    magnitude = np.float64(params["attn_factor"])
    if ext_factor != 0:
        mix = _yarn_ramp(pair, params) * ext_factor
        theta = theta * (1 - mix) + extrapolated * mix
        magnitude = magnitude * (1 + 0.1 * np.log(1 / np.float64(freq_scale)))
    return np.cos(theta) * magnitude, np.sin(theta) * magnitude


def _yarn_ramp(pair: Array, params: Mapping[str, int | float]) -> Array:
    """1 for pairs that turn fast (extrapolate), 0 for slow ones (interpolate), linear between."""
    low = np.maximum(0, np.floor(_correction_pair(params["beta_fast"], params)))
    high = np.minimum(params["n_dims"] - 1, np.ceil(_correction_pair(params["beta_slow"], params)))
    return 1 - np.clip((pair - low) / np.maximum(0.001, high - low), 0, 1)


def _correction_pair(n_rotations: float, params: Mapping[str, int | float]) -> np.float64:
    """The pair that makes `n_rotations` full turns over the original context."""
    turns = np.float64(params["n_ctx_orig"]) / (np.float64(n_rotations) * 2 * math.pi)
    return params["n_dims"] * np.log(turns) / (2 * np.log(np.float64(params["freq_base"])))


def soft_max(node: Tensor) -> None:
    """softmax over each row of a · scale + slope of the head · mask."""
    params = node.params
    scores = floats(node.sources[0]).astype(np.float64) * params["scale"]
    if len(node.sources) == 2:
        n_streams, n_heads, n_rows, _ = scores.shape
        mask = _mask_of(node.sources[1], n_streams, n_heads, n_rows)
        scores = scores + alibi_slopes(n_heads, params["max_bias"])[:, None, None] * mask
    if scores.shape[-1]:
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        store(node, weights / weights.sum(axis=-1, keepdims=True))


def alibi_slopes(n_heads: int, max_bias: float) -> Array:
    """Return the factor of the mask for each head; all 1 without a bias."""
    if max_bias <= 0 or n_heads == 0:
        return np.ones(n_heads)
    base_heads = 2 ** int(math.log2(n_heads))
    head = np.arange(n_heads)
    regular = 2.0 ** (-max_bias * (head + 1) / base_heads)
    between = 2.0 ** (-max_bias / 2 * (2 * (head - base_heads) + 1) / base_heads)
    return np.where(head < base_heads, regular, between)


def _mask_of(mask: Tensor, n_streams: int, n_heads: int, n_rows: int) -> Array:
    """Return the mask of every stream, head and row; extra rows are left out, heads and streams repeat."""
    values = floats(mask).astype(np.float64)[:, :, :n_rows]
    stream, head = np.arange(n_streams) % values.shape[0], np.arange(n_heads) % values.shape[1]
    return values[stream[:, None], head[None, :]]


def flash_attn_ext(node: Tensor) -> None:
    """For every stream, head and token: softmax(q · k · scale, capped, + slope · mask) times v.

    Positions with a mask of -inf take no part, whatever their k and v hold; a token that sees none gives 0.
    """
    q, k, v = (floats(source).astype(np.float64) for source in node.sources[:3])
    params = node.params
    n_streams, n_heads, n_tokens, _ = q.shape
    heads_per_k, streams_per_k = n_heads // k.shape[1], n_streams // k.shape[0]
    slopes = alibi_slopes(n_heads, params["max_bias"])
    mask = _mask_of(node.sources[3], n_streams, n_heads, n_tokens) if len(node.sources) == 4 else None
    result = np.zeros((n_streams, n_tokens, n_heads, v.shape[-1]))
    for stream, head, token in np.ndindex(n_streams, n_heads, n_tokens):
        bias = np.zeros(k.shape[2]) if mask is None else slopes[head] * mask[stream, head, token]
        seen = bias != -np.inf
        keys = k[stream // streams_per_k, head // heads_per_k][seen]
        values = v[stream // streams_per_k, head // heads_per_k][seen]
        if len(keys):
            scores = _capped(keys @ q[stream, head, token] * params["scale"], params["logit_softcap"]) + bias[seen]
            weights = np.exp(scores - scores.max())
            result[stream, token, head] = weights / weights.sum() @ values
    store(node, result)


def _capped(scores: Array, softcap: float) -> Array:
    return softcap * np.tanh(scores / softcap) if softcap else scores
