"""What DeepSeek models add: scores of cached tokens, and residual streams that are mixed.

Belongs here: LIGHTNING_INDEXER, DSV4_HC_*. Must not be here: attention (`ops_attention`).

Source: ggml's CPU backend.
"""

from __future__ import annotations

import numpy as np

from rpc_backend.plugin_api import Tensor
from rpc_backend_reference.arrays import Array, floats, store


def _doubles(node: Tensor) -> list[Array]:
    return [floats(source).astype(np.float64) for source in node.sources]


def lightning_indexer(node: Tensor) -> None:
    q, k, weights, mask = _doubles(node)
    products = np.maximum(np.einsum("sthi,ski->sthk", q, k[:, :, 0]), 0)
    scores = np.einsum("sthk,sth->stk", products, weights[:, 0])
    repeated = mask[np.arange(len(q)) % len(mask), 0]
    store(node, (scores + repeated)[:, None])


def hc_comb(node: Tensor) -> None:
    """The matrix of a token: row after row a softmax plus eps, then columns and rows in turn divided by their sums."""
    mixes, scale, base = _doubles(node)
    eps = node.params["eps"]
    x = mixes[0, 0] * scale[0, 0, 0, 2] + base[0, 0, 0]
    x = x[:, 8:].reshape(-1, 4, 4)  # [tokens, rows, columns]
    x = np.exp(x - x.max(axis=2, keepdims=True))
    x = x / x.sum(axis=2, keepdims=True) + eps
    for turn in range(2 * int(node.params["n_iter"]) - 1):
        x = x / (x.sum(axis=1 + turn % 2, keepdims=True) + eps)
    store(node, x[None])


def hc_pre(node: Tensor) -> None:
    x, weights = _doubles(node)
    weights = 1 / (1 + np.exp(-weights[0])) if node.params["gated"] else weights[0, 0][..., None]
    store(node, (node.params["scale"] * (x[0] * weights).sum(axis=1))[None, None])


def hc_post(node: Tensor) -> None:
    x, residual, post, *comb = _doubles(node)
    mixed = np.einsum("tsi,tsd->tdi", residual[0], comb[0][0]) if comb else residual[0]
    store(node, (x[0, 0][:, None] * post[0, 0][..., None] + mixed)[None])
