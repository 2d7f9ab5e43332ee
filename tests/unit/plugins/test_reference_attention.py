"""Rope, softmax and attention of the reference backend, against loops over complex and plain numbers."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
import pytest

from rpc_backend.graph import RopeMode, build
from rpc_backend_reference.ops_attention import alibi_slopes

_RANDOM = np.random.default_rng(3)
_POSITIONS = np.array([0, 1, 7, 300], "i4")


def _normal(*shape):
    return _RANDOM.normal(size=shape).astype("f4")


def _rope(mode: RopeMode, n_dims: int, **settings: Any):
    return lambda a, positions, factors=None: build.rope(a, positions, factors, n_dims=n_dims, mode=mode, **settings)


def _turned(row, angles, mode, n_dims, magnitude=1.0):
    """Return a head with each pair turned as a complex number."""
    expected = np.array(row, np.float64)
    for pair, angle in enumerate(angles):
        first, second = (2 * pair, 2 * pair + 1) if mode is RopeMode.NORMAL else (pair, pair + n_dims // 2)
        turned = complex(row[first], row[second]) * cmath.exp(1j * angle) * magnitude
        expected[first], expected[second] = turned.real, turned.imag
    return expected


@pytest.mark.parametrize("mode", [RopeMode.NORMAL, RopeMode.NEOX], ids=lambda mode: mode.name)
@pytest.mark.parametrize("n_dims", [8, 6])
def test_pairs_turn_by_their_frequency(compute, mode, n_dims):
    a = _normal(4, 3, 8)
    result = compute(_rope(mode, n_dims, freq_base=500.0, freq_scale=0.5), a, _POSITIONS)
    for token, head in np.ndindex(4, 3):
        angles = [0.5 * _POSITIONS[token] * 500.0 ** (-2 * pair / n_dims) for pair in range(n_dims // 2)]
        assert np.allclose(result[token, head], _turned(a[token, head], angles, mode, n_dims), atol=1e-5)


_WHICH = {
    # mode: which of the four positions turns each of 8 pairs, with sections 2, 2, 1, 1
    RopeMode.MROPE: [0, 0, 1, 1, 2, 3, 0, 0],
    RopeMode.IMROPE: [0, 1, 2, 0, 1, 3, 0, 1],
    RopeMode.VISION: [0, 0, 1, 1, 2, 3, 0, 0],
}


@pytest.mark.parametrize("mode", _WHICH, ids=lambda mode: mode.name)
def test_sections_turn_by_positions_of_their_own(compute, mode):
    n_dims = 8 if mode is RopeMode.VISION else 16
    a, positions = _normal(3, 2, 16), np.array([5, 6, 7, 50, 60, 70, 11, 12, 13, 90, 91, 92], "i4")
    result = compute(_rope(mode, n_dims, sections=(2, 2, 1, 1)), a, positions)
    exponents = [0, 1, 0, 1, 0, 0, 0, 1] if mode is RopeMode.VISION else range(8)
    for token, head in np.ndindex(3, 2):
        angles = [
            positions[3 * which + token] * 10000.0 ** (-2 * exponent / n_dims)
            for which, exponent in zip(_WHICH[mode], exponents, strict=True)
        ]
        assert np.allclose(result[token, head], _turned(a[token, head], angles, mode, 16), atol=1e-4)


def test_an_offset_leaves_the_first_elements_alone(compute):
    a = _normal(4, 2, 8)
    result = compute(_rope(RopeMode.NEOX, 4, n_offset=2), a, _POSITIONS)
    inner = compute(_rope(RopeMode.NEOX, 4), np.ascontiguousarray(a[..., 2:6]), _POSITIONS)
    assert np.array_equal(result[..., [0, 1, 6, 7]], a[..., [0, 1, 6, 7]])
    assert np.allclose(result[..., 2:6], inner)


def test_a_sink_takes_a_share_and_gives_nothing(compute):
    a, mask, sinks = _normal(1, 3, 2, 5), np.zeros((2, 5), "f4"), _normal(3)
    result = compute(lambda x, m, s: build.soft_max(x, m, scale=0.3, sinks=s), a, mask, sinks)
    for head, row in np.ndindex(3, 2):
        expected = _softmax([*(0.3 * a[0, head, row]), sinks[head]])[:-1]
        assert np.allclose(result[head, row], expected, atol=1e-6)


def test_attention_with_sinks_is_softmax_with_sinks_times_values(compute):
    q, k, v = _normal(4, 2, 8), _normal(2, 6, 8), _normal(2, 6, 5)
    mask, sinks = np.where(_normal(2, 6) > 1, -np.inf, 0.5).astype("f2"), _normal(4)
    mask[:, 0] = 0
    result = compute(lambda *given: build.flash_attn_ext(*given[:4], 0.3, sinks=given[4]), q, k, v, mask, sinks)
    for token, head in np.ndindex(2, 4):
        scores = 0.3 * k[head // 2] @ q[head, token] + mask[token]
        shares = _softmax([*scores, sinks[head]])[:-1]
        assert np.allclose(result[token, head], shares @ v[head // 2], atol=1e-5)


def test_factors_divide_the_angle(compute):
    a, factors = _normal(4, 1, 4), np.array([2.0, 8.0], "f4")
    result = compute(_rope(RopeMode.NEOX, 4), a, _POSITIONS, factors)
    for token in range(4):
        angles = [_POSITIONS[token] / 2.0, _POSITIONS[token] * 10000.0**-0.5 / 8.0]
        assert np.allclose(result[token, 0], _turned(a[token, 0], angles, RopeMode.NEOX, 4), atol=1e-5)


def test_yarn_mixes_by_how_often_a_pair_turns(compute):
    n_dims, base, scale, n_ctx = 64, 10000.0, 0.25, 4096
    settings = {"n_ctx_orig": n_ctx, "freq_scale": scale, "ext_factor": 1.0, "attn_factor": 1.5}
    a = _normal(4, 1, n_dims)
    result = compute(_rope(RopeMode.NORMAL, n_dims, **settings), a, _POSITIONS)

    def pair_of(turns):
        return n_dims * math.log(n_ctx / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(0, math.floor(pair_of(32.0))), min(n_dims - 1, math.ceil(pair_of(1.0)))
    assert 0 < low < high < n_dims // 2
    for token in range(4):
        angles = []
        for pair in range(n_dims // 2):
            fast = 1 - min(1, max(0, (pair - low) / (high - low)))
            plain = _POSITIONS[token] * base ** (-2 * pair / n_dims)
            angles.append(plain * fast + plain * scale * (1 - fast))
        magnitude = 1.5 * (1 + 0.1 * math.log(1 / scale))
        assert np.allclose(
            result[token, 0], _turned(a[token, 0], angles, RopeMode.NORMAL, n_dims, magnitude), atol=1e-4
        )


def test_yarn_without_an_original_context_is_still_a_number(compute):
    result = compute(_rope(RopeMode.NORMAL, 8, ext_factor=1.0), _normal(4, 1, 8), _POSITIONS)
    assert np.all(np.isfinite(result))


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (8, [2.0**-h for h in range(1, 9)]),
        (6, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]),
        (1, [2.0**-8]),
    ],
)
def test_slopes_of_alibi(heads, expected):
    assert np.allclose(alibi_slopes(heads, 8.0), expected)
    assert alibi_slopes(heads, 0.0).tolist() == [1.0] * heads


def _softmax(scores):
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def test_softmax_with_scale_slopes_and_mask(compute):
    a, mask = _normal(2, 6, 3, 5), _normal(2, 2, 4, 5).astype("f2")
    result = compute(lambda x, m: build.soft_max(x, m, scale=0.3, max_bias=8.0), a, mask)
    slopes = alibi_slopes(6, 8.0)
    for stream, head, row in np.ndindex(2, 6, 3):
        scores = [
            0.3 * a[stream, head, row, i] + slopes[head] * float(mask[stream, head % 2, row, i]) for i in range(5)
        ]
        assert np.allclose(result[stream, head, row], _softmax(scores), atol=1e-6)


def test_softmax_hides_what_is_masked_and_takes_large_scores(compute):
    mask = [[0.0, -math.inf, 0.0]]
    assert compute(build.soft_max, [[1.0, 5.0, 1.0]], mask).tolist() == [0.5, 0.0, 0.5]
    assert compute(build.soft_max, [1e4, 1e4, -1e4]).tolist() == [0.5, 0.5, 0.0]


def _attention(q, k, v, mask, scale, slopes, softcap):
    """Return [streams, tokens, heads, head_v] by loops; every token must see something."""
    n_streams, n_heads, n_tokens, _ = q.shape
    result = np.zeros((n_streams, n_tokens, n_heads, v.shape[-1]))
    for stream, head, token in np.ndindex(n_streams, n_heads, n_tokens):
        kv_stream, kv_head = stream * k.shape[0] // n_streams, head * k.shape[1] // n_heads
        scores = []
        for position in range(k.shape[2]):
            score = scale * float(q[stream, head, token] @ k[kv_stream, kv_head, position])
            score = softcap * math.tanh(score / softcap) if softcap else score
            bias = mask[stream % mask.shape[0], head % mask.shape[1], token, position]
            scores.append(score + slopes[head] * float(bias))
        result[stream, token, head] = np.array(_softmax(scores)) @ v[kv_stream, kv_head]
    return result


@pytest.mark.parametrize("max_bias", [0.0, 8.0])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("kv_streams", [1, 2])
def test_attention_against_loops(compute, max_bias, softcap, kv_streams):
    q, k, v = _normal(2, 6, 3, 8), _normal(kv_streams, 2, 7, 8), _normal(kv_streams, 2, 7, 5)
    mask = _normal(2, 3, 4, 7).astype("f2")
    mask[..., 5:] = -np.inf
    result = compute(lambda *x: build.flash_attn_ext(*x, 0.4, max_bias, softcap), q, k, v, mask)
    expected = _attention(q, k, v, mask, 0.4, alibi_slopes(6, max_bias), softcap)
    assert result.shape == (2, 3, 6, 5)
    assert np.allclose(result, expected, atol=1e-5)


def test_attention_without_a_mask(compute):
    q, k, v = _normal(1, 2, 3, 8), _normal(1, 2, 7, 8).astype("f2"), _normal(1, 2, 7, 8).astype("f2")
    result = compute(lambda *x: build.flash_attn_ext(*x, None, 0.4), q, k, v)
    expected = _attention(q, k, v, np.zeros((1, 1, 3, 7)), 0.4, np.ones(2), 0.0)
    assert np.allclose(result, expected[0], atol=1e-5)


def test_what_is_masked_may_be_anything_and_a_blind_token_gives_zero(compute):
    q, k, v = _normal(1, 1, 2, 4), _normal(1, 1, 3, 4), _normal(1, 1, 3, 4)
    k[:, :, 1], v[:, :, 1] = np.nan, np.inf
    mask = np.array([[0.0, -np.inf, -np.inf], [-np.inf] * 3], "f2")
    result = compute(lambda *x: build.flash_attn_ext(*x, 1.0), q, k, v, mask)
    assert np.allclose(result.reshape(2, 4), [v[0, 0, 0], [0.0] * 4])
