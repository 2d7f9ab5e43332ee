"""Operations with a state of the reference backend, against loops that follow the recurrence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rpc_backend.errors import ComputeError
from rpc_backend.graph import build

_RANDOM = np.random.default_rng(6)


def _normal(*shape):
    return _RANDOM.normal(size=shape).astype("f4")


def test_a_convolution_looks_back_over_its_kernel(compute):
    x, kernel = _normal(2, 3, 8), _normal(3, 4)  # [streams, channels, 3 + tokens], [channels, 4]
    result = compute(build.ssm_conv, x, kernel)
    for stream, token, channel in np.ndindex(2, 5, 3):
        expected = sum(x[stream, channel, token + i] * kernel[channel, i] for i in range(4))
        assert result[stream, token, channel] == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("gate_size", [1, 4])
def test_the_delta_rule_moves_the_state_towards_the_value(compute, gate_size):
    size, heads, heads_k, tokens, streams, snapshots = 4, 4, 2, 3, 2, 2
    q, k = _normal(streams, tokens, heads_k, size), _normal(streams, tokens, heads_k, size)
    v, beta = _normal(streams, tokens, heads, size), _RANDOM.uniform(size=(streams, tokens, heads, 1)).astype("f4")
    gate = -_RANDOM.uniform(size=(streams, tokens, heads, gate_size)).astype("f4")
    state = _normal(streams, heads, size, size)
    found = compute(lambda *given: build.gated_delta_net(*given, snapshots=snapshots), q, k, v, gate, beta, state)
    n_out = v.size
    out = found.reshape(-1)[:n_out].reshape(v.shape)
    kept = found.reshape(-1)[n_out:].reshape(snapshots, *state.shape)
    for stream, head in np.ndindex(streams, heads):
        s = state[stream, head].T.astype(np.float64)  # s[i][j]: key element i, value element j
        for token in range(tokens):
            key, query = k[stream, token, head % heads_k], q[stream, token, head % heads_k]
            s = np.exp(gate[stream, token, head])[:, None] * s
            answer = [sum(s[i][j] * key[i] for i in range(size)) for j in range(size)]
            error = (v[stream, token, head] - answer) * beta[stream, token, head]
            s = s + np.outer(key, error)
            expected = [sum(s[i][j] * query[i] for i in range(size)) / math.sqrt(size) for j in range(size)]
            assert np.allclose(out[stream, token, head], expected, atol=1e-4)
            if tokens - 1 - token < snapshots:
                assert np.allclose(kept[tokens - 1 - token, stream, head], s.T, atol=1e-4)


def test_linear_attention_forgets_by_row(compute):
    size, heads, tokens, streams, factor = 4, 2, 6, 2, 0.5
    k, v, q = (_normal(tokens, heads, size) for _ in range(3))
    gate, state = _RANDOM.uniform(size=(tokens, heads, size)).astype("f4"), _normal(streams, size * size * heads)
    found = compute(lambda *given: build.gated_linear_attn(*given, factor), k, v, q, gate, state).reshape(-1)
    out, kept = found[: k.size].reshape(k.shape), found[k.size :].reshape(streams, heads, size, size)
    for stream, head in np.ndindex(streams, heads):
        s = state.reshape(streams, heads, size, size)[stream, head].astype(np.float64)
        for token in range(stream * 3, stream * 3 + 3):
            s = gate[token, head][:, None] * s + np.outer(k[token, head], v[token, head])
            assert np.allclose(out[token, head], factor * q[token, head] @ s, atol=1e-4)
        assert np.allclose(kept[stream, head], s, atol=1e-4)


@pytest.mark.parametrize("decays", [1, 4])
def test_a_scan_lets_states_decay_and_learn(compute, decays):
    size, dim, heads, groups, tokens, streams = 4, 3, 4, 2, 3, 2
    snapshots = 2 if decays == 1 else 1
    states, x = _normal(5, heads, dim, size), _normal(streams, tokens, heads, dim)
    step, decay = _normal(streams, tokens, heads), -_RANDOM.uniform(size=(heads, decays)).astype("f4")
    b, c = _normal(streams, tokens, groups, size), _normal(streams, tokens, groups, size)
    ids = np.array([4, 1], np.int32)
    found = compute(lambda *given: build.ssm_scan(*given, snapshots=snapshots), states, x, step, decay, b, c, ids)
    out, kept = found[: x.size].reshape(x.shape), found[x.size :].reshape(snapshots, streams, heads, dim, size)
    for stream, head, row in np.ndindex(streams, heads, dim):
        s = states[ids[stream], head, row].astype(np.float64)
        for token in range(tokens):
            soft = math.log(1 + math.exp(step[stream, token, head]))
            group = head // (heads // groups)
            s = s * np.exp(soft * decay[head]) + b[stream, token, group] * x[stream, token, head, row] * soft
            assert out[stream, token, head, row] == pytest.approx(s @ c[stream, token, group], abs=1e-4)
            if tokens - 1 - token < snapshots:
                assert np.allclose(kept[tokens - 1 - token, stream, head, row], s, atol=1e-4)


@pytest.mark.parametrize("outside", [-1, 5])
def test_a_scan_of_a_state_that_is_not_there(compute, outside):
    given = [_normal(5, 2, 3, 4), _normal(1, 2, 3), _normal(1, 2), _normal(2, 1), _normal(1, 1, 4), _normal(1, 1, 4)]
    with pytest.raises(ComputeError, match=f"row index {outside}"):
        compute(build.ssm_scan, *given, np.array([outside], np.int32))


@pytest.mark.parametrize("version", [6, 7])
def test_rwkv_decays_and_learns(compute, version):
    size, heads, tokens, streams = 4, 2, 6, 2
    k, v, r, a, b = (_normal(tokens, heads, size) for _ in range(5))
    decay = _RANDOM.uniform(size=(tokens, heads, size)).astype("f4")
    first, state = _normal(heads, size), _normal(streams, size * size * heads)
    found = (
        compute(build.rwkv_wkv6, k, v, r, first, decay, state)
        if version == 6
        else compute(build.rwkv_wkv7, r, decay, k, v, a, b, state)
    ).reshape(-1)
    out, kept = found[: k.size].reshape(k.shape), found[k.size :].reshape(streams, heads, size, size)
    for stream, head in np.ndindex(streams, heads):
        s = state.reshape(streams, heads, size, size)[stream, head].astype(np.float64)
        for token in range(stream * 3, stream * 3 + 3):
            if version == 6:  # rows of a state are elements of the key
                new = np.outer(k[token, head], v[token, head])
                expected = r[token, head] @ (s + first[head][:, None] * new)
                s = decay[token, head][:, None] * s + new
            else:  # rows of a state are elements of the value
                s = s * decay[token, head] + np.outer(s @ a[token, head], b[token, head])
                s += np.outer(v[token, head], k[token, head])
                expected = s @ r[token, head]
            assert np.allclose(out[token, head], expected, atol=1e-4)
        assert np.allclose(kept[stream, head], s, atol=1e-4)


def test_a_lower_triangle_is_solved_and_what_is_above_is_not_read(compute):
    a, b = np.tril(_normal(2, 5, 5)) + 3 * np.eye(5, dtype="f4"), _normal(2, 5, 3)
    dirty = a + np.triu(_normal(2, 5, 5), 1)
    assert np.allclose(a @ compute(build.solve_tri, dirty, b), b, atol=1e-5)
