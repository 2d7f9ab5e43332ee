"""Operations that carry a state from token to token.

Belongs here: SSM_CONV, SSM_SCAN, GATED_DELTA_NET, GATED_LINEAR_ATTN, RWKV_WKV6, RWKV_WKV7, SOLVE_TRI. Must not be here:
attention over a cache.

Source: ggml's CPU backend; the gated delta rule is https://arxiv.org/abs/2412.06464, gated linear attention
https://arxiv.org/abs/2312.06635, the selective scan https://arxiv.org/abs/2405.21060, RWKV
https://arxiv.org/abs/2404.05892 and https://arxiv.org/abs/2503.14456.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rpc_backend.plugin_api import Tensor
from rpc_backend_reference.arrays import Array, cells, floats, store
from rpc_backend_reference.ops_rows import checked


def ssm_conv(node: Tensor) -> None:
    """Each channel of each token: the sum of the window that ends at the token, times the channel's kernel."""
    x, kernel = (floats(source).astype(np.float64) for source in node.sources)
    width = kernel.shape[3]
    windows = np.lib.stride_tricks.sliding_window_view(x[0], width, axis=-1)  # [streams, channels, tokens, width]
    convolved = (windows * kernel[0, 0][:, None]).sum(axis=-1)
    store(node, convolved.swapaxes(-1, -2)[None])


def gated_delta_net(node: Tensor) -> None:
    """Per head S: forget by exp(gate), then move what S answers to the key towards the value by beta; the output is
    what S answers to the query, over √size. Heads of q and k repeat in turn: head h uses h mod heads_k.

    States lie transposed: row j is column j of S. Of `snapshots` states, number i is the one i tokens before the end;
    those before the first token are not written.
    """
    q, k, v, gate, beta, state = (floats(source).astype(np.float64) for source in node.sources)
    streams, tokens, heads, size = v.shape
    q, k = (_repeated(x, streams, heads) / factor for x, factor in ((q, np.sqrt(size)), (k, 1.0)))
    state, n_out = state.copy(), v.size
    out = np.empty(v.shape)
    target = cells(node).flatten()
    snapshots = target[n_out:].reshape(int(node.params["snapshots"]), *state.shape)
    for token in range(tokens):
        state *= np.exp(gate[:, token])[..., None, :]
        error = v[:, token] - np.einsum("shji,shi->shj", state, k[:, token])
        state += (error * beta[:, token])[..., None] * k[:, token][..., None, :]
        out[:, token] = np.einsum("shji,shi->shj", state, q[:, token])
        if tokens - 1 - token < len(snapshots):
            snapshots[tokens - 1 - token] = state
    if not tokens:
        snapshots[0] = state
    target[:n_out] = out.reshape(-1)
    store(node, target.reshape(node.ne[::-1]))


def _repeated(x: Array, streams: int, heads: int) -> Array:
    """Repeat heads in turn and streams in runs: [streams, tokens, heads, size]."""
    head = np.arange(heads) % x.shape[2]
    stream = np.arange(streams) // (streams // x.shape[0])
    return x[stream][:, :, head]


def gated_linear_attn(node: Tensor) -> None:
    """Per head S: S = gate · S + k ⊗ v; the output is q · S · scale. The tokens are those of all streams in turn."""
    k, v, q, gate = (floats(source)[0].astype(np.float64) for source in node.sources[:4])  # [tokens, heads, size]
    tokens, heads, size = k.shape
    streams = node.sources[4].ne[1]
    state = floats(node.sources[4])[0, 0].reshape(streams, heads, size, size).astype(np.float64)
    out = np.empty((tokens, heads, size))
    for token in range(tokens):
        own = state[token // (tokens // streams)]
        own *= gate[token][..., None]
        own += k[token][..., None] * v[token][..., None, :]
        out[token] = np.einsum("hij,hi->hj", own, q[token]) * node.params["scale"]
    store(node, np.concatenate([out.reshape(-1), state.reshape(-1)]).reshape(node.ne[::-1]))


def ssm_scan(node: Tensor) -> None:
    """Per head and row: state = state · exp(step · decay) + step · x · b; the output is state · c. Steps are softened:
    log(1 + exp(step)). Heads share b and c in runs. Of `snapshots` states, number i is the one i tokens before the end;
    those before the first token are not written.

    Raises:
        ComputeError: an id is none of the states.
    """
    states, x, step, decay, b, c = (floats(source).astype(np.float64) for source in node.sources[:6])
    ids = checked(node, node.sources[6], len(states))[0, 0]
    _, tokens, heads, _ = x.shape
    state = states[ids]  # [streams, heads, dim, n]
    step = np.logaddexp(0, step[0])[..., None, None]  # [streams, tokens, heads, 1, 1]
    b, c = (np.repeat(each, heads // each.shape[2], axis=2)[..., None, :] for each in (b, c))
    out = np.empty(x.shape)
    target = cells(node).flatten()
    snapshots = target[x.size :].reshape(int(node.params["snapshots"]), *state.shape)
    for token in range(tokens):
        state = state * np.exp(step[:, token] * decay[0, 0][:, None]) + b[:, token] * (
            x[:, token][..., None] * step[:, token]
        )
        out[:, token] = (state * c[:, token]).sum(axis=-1)
        if tokens - 1 - token < len(snapshots):
            snapshots[tokens - 1 - token] = state
    if not tokens:
        snapshots[0] = state
    target[: x.size] = out.reshape(-1)
    store(node, target.reshape(node.ne[::-1]))


def rwkv_wkv6(node: Tensor) -> None:
    """Per head S: the output is r · (S + first · k ⊗ v), then S = decay · S + k ⊗ v."""
    k, v, r, first, decay, state = _rwkv_sources(node)
    first = first.reshape(k.shape[1:])[..., None]

    def one_token(own: Array, token: int) -> Array:
        new = k[token][..., None] * v[token][..., None, :]
        answer = np.einsum("hij,hi->hj", own + first * new, r[token])
        own[...] = own * decay[token][..., None] + new
        return answer

    _run_rwkv(node, state, k.shape, one_token)


def rwkv_wkv7(node: Tensor) -> None:
    """Per head S: S = S · decay + (S · a) ⊗ b + v ⊗ k; the output is S · r."""
    r, decay, k, v, a, b, state = _rwkv_sources(node)

    def one_token(own: Array, token: int) -> Array:
        removed = np.einsum("hij,hj->hi", own, a[token])
        own *= decay[token][:, None]
        own += removed[..., None] * b[token][:, None] + v[token][..., None] * k[token][:, None]
        return np.einsum("hij,hj->hi", own, r[token])

    _run_rwkv(node, state, k.shape, one_token)


def _rwkv_sources(node: Tensor) -> list[Array]:
    return [floats(source)[0].astype(np.float64) for source in node.sources]


def _run_rwkv(node: Tensor, state: Array, shape: tuple[int, ...], one_token: Callable[[Array, int], Array]) -> None:
    """Take the tokens of all streams in turn through their states, and write outputs and states."""
    tokens, heads, size = shape
    streams = node.sources[-1].ne[1]
    states = state.reshape(streams, heads, size, size)
    out = [one_token(states[token // (tokens // streams)], token).reshape(-1) for token in range(tokens)]
    store(node, np.concatenate([*out, states.reshape(-1)]).reshape(node.ne[::-1]))


def solve_tri(node: Tensor) -> None:
    """Row by row from the top: x_i = (b_i - the sum over j < i of a_ij x_j) / a_ii. What is above is not read."""
    a, b = (floats(source).astype(np.float64) for source in node.sources)
    x = np.empty(b.shape)
    for row in range(a.shape[2]):
        known = np.einsum("...j,...jc->...c", a[:, :, row, :row], x[:, :, :row])
        x[:, :, row] = (b[:, :, row] - known) / a[:, :, row, row][..., None]
    store(node, x)
