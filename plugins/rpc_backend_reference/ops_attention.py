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
    """Rotate n_dims elements of each head in pairs by the angle of its token; the rest is kept."""
    params = node.params
    mode, n_dims, start = RopeMode(int(params["mode"])), int(params["n_dims"]), int(params["n_offset"])
    x = floats(node.sources[0]).astype(np.float64)
    positions = cells(node.sources[1])[0, 0, 0].astype(np.float64).reshape(-1, node.ne[2])
    n_pairs = n_dims if mode is RopeMode.VISION else n_dims // 2
    factors = floats(node.sources[2])[0, 0, 0, :n_pairs] if len(node.sources) == 3 else 1.0
    row, exponent = _sections(mode, n_pairs, params)
    cos, sin = _rotations(positions[row].T, exponent, factors, params)
    first, second = _pairs(start, n_pairs, mode)
    a, b = x[..., first].copy(), x[..., second].copy()
    x[..., first] = a * cos - b * sin
    x[..., second] = a * sin + b * cos
    store(node, x)


def _pairs(start: int, n_pairs: int, mode: RopeMode) -> tuple[slice, slice]:
    end = start + 2 * n_pairs
    if mode is RopeMode.NORMAL:
        return slice(start, end, 2), slice(start + 1, end, 2)
    return slice(start, start + n_pairs), slice(start + n_pairs, end)


def _sections(mode: RopeMode, n_pairs: int, params: Mapping[str, int | float]) -> tuple[Array, Array]:
    """Return for each pair which of a token's positions turns it, and the exponent of its frequency."""
    pair = np.arange(n_pairs)
    if not mode.has_sections:
        return np.zeros(n_pairs, int), pair
    sizes = [int(params[f"section{index}"]) for index in range(4)]
    place = pair % sum(sizes)
    if mode is RopeMode.IMROPE:
        turn = place % 3
        return np.where(place < 3 * np.array(sizes)[turn], turn, 3), pair
    section = np.searchsorted(np.cumsum(sizes), place, side="right")
    starts = np.concatenate([[0], np.cumsum(sizes[:3])])
    return section, place - starts[section] if mode is RopeMode.VISION else pair


def _rotations(
    positions: Array, exponent: Array, factors: Array | float, params: Mapping[str, int | float]
) -> tuple[Array, Array]:
    """Return cos and sin, both with the magnitude in them.

    Shapes: positions [tokens, pairs]; exponent, factors [pairs]; results [tokens, 1, pairs].
    """
    n_dims, freq_scale, ext_factor = int(params["n_dims"]), params["freq_scale"], params["ext_factor"]
    extrapolated = positions[:, None] * np.float64(params["freq_base"]) ** (-2.0 * exponent / n_dims) / factors
    theta = freq_scale * extrapolated
    magnitude = np.float64(params["attn_factor"])
    if ext_factor != 0:
        mix = _yarn_ramp(np.arange(len(exponent)), params) * ext_factor
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
    """softmax over each row of a · scale + slope of the head · mask, and of the head's sink, whose share is dropped."""
    params = node.params
    scores = floats(node.sources[0]).astype(np.float64) * params["scale"]
    n_streams, n_heads, n_rows, n_columns = scores.shape
    if len(node.sources) >= 2:
        mask = _mask_of(node.sources[1], n_streams, n_heads, n_rows)
        scores = scores + alibi_slopes(n_heads, params["max_bias"])[:, None, None] * mask
    if n_columns:
        sinks = sinks_of(node, 2)
        store(node, _shares(scores, None if sinks is None else sinks[:, None, None]))


def sinks_of(node: Tensor, index: int) -> Array | None:
    """Return the sink of each head, if the node has that source."""
    return floats(node.sources[index])[0, 0, 0].astype(np.float64) if len(node.sources) > index else None


def _shares(scores: Array, sinks: Array | float | None) -> Array:
    """Return the softmax of the last axis with one score more, the sink, whose own share is left out."""
    peak = scores.max(axis=-1, keepdims=True)
    peak = peak if sinks is None else np.maximum(peak, sinks)
    weights = np.exp(scores - peak)
    whole = weights.sum(axis=-1, keepdims=True)
    return weights / (whole if sinks is None else whole + np.exp(sinks - peak))


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

    The sink of a head is one score more, whose share is dropped. Positions with a mask of -inf take no part, whatever
    their k and v hold; a token that sees none gives 0.
    """
    q, k, v = (floats(source).astype(np.float64) for source in node.sources[:3])
    params = node.params
    n_streams, n_heads, n_tokens, _ = q.shape
    heads_per_k, streams_per_k = n_heads // k.shape[1], n_streams // k.shape[0]
    slopes = alibi_slopes(n_heads, params["max_bias"])
    mask = _mask_of(node.sources[3], n_streams, n_heads, n_tokens) if len(node.sources) >= 4 else None
    sinks = sinks_of(node, 4)
    result = np.zeros((n_streams, n_tokens, n_heads, v.shape[-1]))
    for stream, head, token in np.ndindex(n_streams, n_heads, n_tokens):
        bias = np.zeros(k.shape[2]) if mask is None else slopes[head] * mask[stream, head, token]
        seen = bias != -np.inf
        keys = k[stream // streams_per_k, head // heads_per_k][seen]
        values = v[stream // streams_per_k, head // heads_per_k][seen]
        if len(keys):
            scores = _capped(keys @ q[stream, head, token] * params["scale"], params["logit_softcap"]) + bias[seen]
            result[stream, token, head] = _shares(scores, None if sinks is None else sinks[head]) @ values
    store(node, result)


def _capped(scores: Array, softcap: float) -> Array:
    return softcap * np.tanh(scores / softcap) if softcap else scores
