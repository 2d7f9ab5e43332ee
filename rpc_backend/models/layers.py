"""The parts that architectures are put together from.

Belongs here: norms, products, positions, attention over the cache, the MLP, each as the tensors of one
layer. Must not be here: which architecture uses which (`architectures`).

Source: the order of operations is that of llama.cpp's graphs, so that results agree to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rpc_backend.graph import Glu, Tensor, build
from rpc_backend.models.cache import LayerCache, flat, window
from rpc_backend.models.hyperparameters import Hyperparameters
from rpc_backend.models.step_shape import StepInputs, StepShape


class LayerBuilder:
    """Builds the parts of one step. Activations are [features, n_total] unless said otherwise.

    Every method names its result like `Qcur-3`, part and layer.
    """

    def __init__(
        self,
        hparams: Hyperparameters,
        weights: Mapping[str, Tensor],
        cache: Sequence[LayerCache],
        shape: StepShape,
        inputs: StepInputs,
    ) -> None:
        self.hparams = hparams
        self.shape = shape
        self.inputs = inputs
        self._weights = weights
        self._cache = cache
        self.last_stored: tuple[Tensor, ...] = ()
        """The cache as the newest layer left it, flat: keys, values."""

    def embed(self) -> Tensor:
        """Look up the tokens: [n_embd, n_total]."""
        return _named(build.get_rows(self._weights["token_embd.weight"], self.inputs.tokens), "embd")

    def norm(self, x: Tensor, weight: str, name: str) -> Tensor:
        """RMS norm over the first axis, times a weight that repeats over the others."""
        normed = build.rms_norm(x, self.hparams.rms_eps)
        return _named(build.mul(normed, self._weights[f"{weight}.weight"]), name)

    def linear(self, x: Tensor, weight: str, name: str) -> Tensor:
        """Matrix product with a weight, plus its bias where the model has one."""
        product = _named(build.mul_mat(self._weights[f"{weight}.weight"], x), name)
        bias = self._weights.get(f"{weight}.bias")
        return product if bias is None else _named(build.add(product, bias), name)

    def project(self, x: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: [head_k, n_head, n_total], [head_k, n_head_kv, n_total], the same of head_v."""
        hparams, n_total = self.hparams, self.shape.n_total
        q = self.linear(x, f"blk.{layer}.attn_q", f"Qcur-{layer}")
        k = self.linear(x, f"blk.{layer}.attn_k", f"Kcur-{layer}")
        v = self.linear(x, f"blk.{layer}.attn_v", f"Vcur-{layer}")
        return (
            build.reshape(q, (hparams.head_k, hparams.n_head, n_total)),
            build.reshape(k, (hparams.head_k, hparams.n_head_kv, n_total)),
            build.reshape(v, (hparams.head_v, hparams.n_head_kv, n_total)),
        )

    def rope(self, x: Tensor, layer: int, name: str) -> Tensor:
        """Turn heads [head, heads, n_total] by their token's position."""
        rope = self.hparams.rope
        turned = build.rope(
            x,
            self.inputs.positions,
            self._weights.get(f"blk.{layer}.rope_freqs.weight"),
            n_dims=rope.n_dims,
            mode=rope.mode,
            n_ctx_orig=rope.n_ctx_orig,
            freq_base=rope.freq_base,
            freq_scale=rope.freq_scale,
            ext_factor=rope.ext_factor,
            attn_factor=rope.attn_factor,
            beta_fast=rope.beta_fast,
            beta_slow=rope.beta_slow,
        )
        return _named(turned, f"{name}-{layer}")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int) -> Tensor:
        """Store keys and values, let the queries look at their sequence's cells, and project the result.

        Shapes: q, k, v as from `project`; the result is [n_embd, n_total].
        """
        hparams, shape, cache = self.hparams, self.shape, self._cache[layer]
        stored_k = _named(self._store(cache.k, k), f"cache_k_stored-{layer}")
        stored_v = _named(self._store(cache.v, v), f"cache_v_stored-{layer}")
        self.last_stored = (stored_k, stored_v)
        seen_k = window(stored_k, cache, hparams.head_k, shape.first_seq, shape.n_seqs, shape.n_kv)
        seen_v = window(stored_v, cache, hparams.head_v, shape.first_seq, shape.n_seqs, shape.n_kv)
        by_sequence = build.reshape(q, (hparams.head_k, hparams.n_head, shape.n_tokens, shape.n_seqs))
        queries = build.permute(by_sequence, 0, 2, 1, 3)  # [head_k, n_tokens, n_head, n_seqs]
        kernel = self._fused_attention if shape.flash_attn else self._plain_attention
        attended = kernel(queries, seen_k, seen_v, layer)
        joined = build.reshape(attended, (hparams.head_v * hparams.n_head, shape.n_total))
        return self.linear(joined, f"blk.{layer}.attn_output", f"attn_out-{layer}")

    def _store(self, cache: Tensor, values: Tensor) -> Tensor:
        rows = build.reshape(values, (cache.ne[0], self.shape.n_total))
        return build.set_rows(flat(cache), rows, self.inputs.kv_rows)  # [embd, n_ctx_seq * n_seq]

    def _fused_attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int) -> Tensor:
        """[head_v, n_head, n_tokens, n_seqs] in one operation."""
        attended = build.flash_attn_ext(q, k, v, self.inputs.mask, self.hparams.attention_scale)
        return _named(attended, f"kqv-{layer}")

    def _plain_attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int) -> Tensor:
        """The same from products and SOFT_MAX."""
        products = _named(build.mul_mat(k, q), f"kq-{layer}")  # [n_kv, n_tokens, n_head, n_seqs]
        shares = build.soft_max(products, self.inputs.mask, self.hparams.attention_scale)
        columns = build.cont(build.transpose(v))  # [n_kv, head_v, n_head_kv, n_seqs]
        mixed = _named(build.mul_mat(columns, shares), f"kqv-{layer}")  # [head_v, n_tokens, n_head, n_seqs]
        return build.cont(build.permute(mixed, 0, 2, 1, 3))

    def keep_outputs(self, x: Tensor, layer: int) -> Tensor:
        """Behind the last layer's attention, keep the tokens whose logits are asked: [features, n_outputs]."""
        is_last = layer == self.hparams.n_layer - 1
        if not is_last or self.shape.n_outputs in (0, self.shape.n_total):
            return x
        return build.get_rows(x, self.inputs.output_rows)

    def swiglu(self, x: Tensor, layer: int) -> Tensor:
        """The gated MLP: down(silu(gate(x)) * up(x))."""
        gate = self.linear(x, f"blk.{layer}.ffn_gate", f"ffn_gate-{layer}")
        up = self.linear(x, f"blk.{layer}.ffn_up", f"ffn_up-{layer}")
        gated = _named(build.glu(Glu.SWIGLU, gate, up), f"ffn_swiglu-{layer}")
        return self.linear(gated, f"blk.{layer}.ffn_down", f"ffn_out-{layer}")

    def add(self, x: Tensor, y: Tensor, name: str) -> Tensor:
        return _named(build.add(x, y), name)


def _named(tensor: Tensor, name: str) -> Tensor:
    tensor.name = name
    return tensor
