"""What DeepSeek models add, in the reference backend, against loops."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.graph import build

_RANDOM = np.random.default_rng(8)


def _normal(*shape):
    return _RANDOM.normal(size=shape).astype("f4")


def test_scores_are_weighed_products_above_zero(compute):
    q, k = _normal(2, 3, 4, 8), _normal(2, 5, 1, 8)  # [streams, tokens, heads, size], [streams, kv, 1, size]
    weights, mask = _normal(2, 1, 3, 4), _normal(1, 1, 3, 5).astype("f2")
    found = compute(lambda *given: build.build("LIGHTNING_INDEXER", list(given)), q, k, weights, mask)
    for stream, token, place in np.ndindex(2, 3, 5):
        expected = float(mask[0, 0, token, place])
        for head in range(4):
            expected += max(0.0, float(q[stream, token, head] @ k[stream, place, 0])) * weights[stream, 0, token, head]
        assert found[stream, 0, token, place] == pytest.approx(expected, abs=1e-4)


def test_a_matrix_that_was_divided_often_has_rows_and_columns_of_one_sum(compute):
    mixes, scale, base = _normal(3, 24), _normal(3), _normal(24)

    def run(rounds):
        params = {"eps": 1e-6, "n_iter": rounds}
        return compute(lambda *given: build.build("DSV4_HC_COMB", list(given), params), mixes, scale, base)

    once = run(1)
    for token in range(3):
        rows = (mixes[token] * scale[2] + base)[8:].reshape(4, 4).astype(np.float64)
        shares = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
        assert np.allclose(once[token], shares / shares.sum(axis=0), atol=1e-4)
    often = run(200)
    assert np.allclose(often.sum(axis=1), 1, atol=1e-3)
    assert np.allclose(often.sum(axis=2), 1, atol=1e-3)


@pytest.mark.parametrize("gated", [0, 1])
def test_streams_become_one(compute, gated):
    x = _normal(3, 4, 6)  # [tokens, streams, n]
    weights = _normal(3, 4, 6) if gated else _normal(3, 4)
    params = {"scale": 0.5, "gated": gated}
    found = compute(lambda *given: build.build("DSV4_HC_PRE", list(given), params), x, weights)
    factors = 1 / (1 + np.exp(-weights)) if gated else weights[..., None]
    assert np.allclose(found, 0.5 * (x * factors).sum(axis=1), atol=1e-5)


@pytest.mark.parametrize("mixed", [False, True])
def test_one_becomes_streams(compute, mixed):
    x, residual, post, comb = _normal(3, 6), _normal(3, 4, 6), _normal(3, 4), _normal(3, 4, 4)
    given = [x, residual, post, *[comb] * mixed]
    found = compute(lambda *given: build.build("DSV4_HC_POST", list(given)), *given)
    for token, stream in np.ndindex(3, 4):
        kept = residual[token, stream]
        if mixed:
            kept = sum(residual[token, other] * comb[token, other, stream] for other in range(4))
        assert np.allclose(found[token, stream], x[token] * post[token, stream] + kept, atol=1e-4)
