"""The KV cache: which tensors hold the keys and values of earlier tokens.

Belongs here: the shape of the cache. Must not be here: who uses which cell (the host), or placing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rpc_backend.errors import ConfigError
from rpc_backend.graph import ElementType, Tensor, build
from rpc_backend.graph.element_types import BF16, F16, F32, Q8_0
from rpc_backend.models.hyperparameters import Hyperparameters, LinearAttention

KV_TYPES = (F16, F32, BF16, Q8_0)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer.

    Shapes: k [head_k * n_head_kv, n_ctx_seq, n_seq], v [head_v * n_head_kv, n_ctx_seq, n_seq]. Each
    sequence owns one plane; the cell of a token is its position.

    A layer with a state keeps F32: k the last inputs of its convolution [n_channels, conv_width - 1, n_seq], the oldest
    first; v its state [n_state, 1, n_seq].
    """

    k: Tensor
    v: Tensor
    is_state: bool = False

    @property
    def n_ctx_seq(self) -> int:
        """Cells of one sequence."""
        return self.k.ne[1]

    @property
    def n_seq(self) -> int:
        return self.k.ne[2]

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes


def cache_spec(
    hparams: Hyperparameters,
    n_ctx_seq: int,
    n_seq: int,
    k_type: ElementType = F16,
    v_type: ElementType | None = None,
) -> list[LayerCache]:
    """Make the cache's leaves, one pair per layer, not placed. Values are of the type of keys if `v_type` is left out.

    Whoever places them must clear their memory: cells that the mask hides are still multiplied, by 0.

    Raises:
        ConfigError: a count below 1, or an element type that is not of `KV_TYPES` or whose blocks do not fit the heads.
    """
    if n_ctx_seq < 1 or n_seq < 1:
        raise ConfigError(f"a cache of {n_seq} sequences of {n_ctx_seq} tokens is empty; both must be above 0")
    v_type = k_type if v_type is None else v_type
    _check_type(k_type, "keys", hparams.head_k)
    _check_type(v_type, "values", hparams.head_v)
    return [
        _state(hparams.linear, layer, n_seq)
        if hparams.linear is not None and hparams.has_state(layer)
        else LayerCache(
            build.leaf(k_type, (hparams.n_embd_k, n_ctx_seq, n_seq), f"cache_k-{layer}"),
            build.leaf(v_type, (hparams.n_embd_v, n_ctx_seq, n_seq), f"cache_v-{layer}"),
        )
        for layer in range(hparams.n_layer)
    ]


def _check_type(kind: ElementType, what: str, head: int) -> None:
    if kind not in KV_TYPES:
        known = ", ".join(kind.name for kind in KV_TYPES)
        raise ConfigError(f"the cache cannot hold {what} of type {kind.name}; supported: {known}")
    if head % kind.block_size:
        raise ConfigError(
            f"{what} of type {kind.name} come in blocks of {kind.block_size}, but this model's heads have {head} "
            "elements; choose F16"
        )


def _state(linear: LinearAttention, layer: int, n_seq: int) -> LayerCache:
    inputs = (linear.n_channels, linear.conv_width - 1, n_seq)
    return LayerCache(
        build.leaf(F32, inputs, f"cache_conv-{layer}"),
        build.leaf(F32, (linear.n_state, 1, n_seq), f"cache_state-{layer}"),
        is_state=True,
    )


def attention_cache(cache: Sequence[LayerCache]) -> LayerCache:
    """Return the first layer's that holds keys and values.

    Raises:
        ConfigError: there is none.
    """
    found = next((layer for layer in cache if not layer.is_state), None)
    if found is None:
        raise ConfigError("no layer of the cache holds keys and values")
    return found


def window(stored: Tensor, cache: LayerCache, head: int, first_seq: int, n_seqs: int, n_kv: int) -> Tensor:
    """Return what attention reads of a cache: the first `n_kv` cells of `n_seqs` sequences.

    `stored` is the flat cache [embd, n_ctx_seq * n_seq] after this step's rows were written to it: reading
    through it is what keeps the order.

    Shapes: [head, n_kv, n_head_kv, n_seqs], a view.
    """
    row = stored.nb[1]
    plane = row * cache.n_ctx_seq
    head_nbytes = stored.type.row_nbytes(head)
    n_heads = stored.ne[0] // head
    by_cell = build.view(
        stored, (head, n_heads, n_kv, n_seqs), (stored.nb[0], head_nbytes, row, plane), offset_bytes=first_seq * plane
    )
    return build.permute(by_cell, 0, 2, 1, 3)  # [head, n_kv, n_head_kv, n_seqs]


def flat(cache: Tensor) -> Tensor:
    """Return a cache as rows, one per cell of every sequence: [embd, n_ctx_seq * n_seq]."""
    return build.reshape(cache, (cache.ne[0], cache.ne[1] * cache.ne[2]))


def check_cache(cache: Sequence[LayerCache], n_layers: int) -> None:
    """Raise ConfigError unless there is one pair per layer."""
    if len(cache) != n_layers:
        raise ConfigError(f"the cache has {len(cache)} layers, the model {n_layers}")
