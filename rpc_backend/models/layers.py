"""The parts that architectures are put together from.

Belongs here: norms, products, positions, attention over the cache, the MLP, each as the tensors of one
layer. Must not be here: which architecture uses which (`architectures`).

Source: the order of operations is that of llama.cpp's graphs, so that results agree to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rpc_backend.graph import Glu, Tensor, Unary, build
from rpc_backend.models.cache import LayerCache, flat, window
from rpc_backend.models.hyperparameters import Hyperparameters
from rpc_backend.models.rope_parameters import Rope
from rpc_backend.models.step_shape import StepInputs, StepShape

SPARE_CELLS = 32
"""A host may give a sequence so many cells more than its context has tokens."""


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
        *,
        takes_embd: bool = False,
    ) -> None:
        """With `takes_embd` the tokens of the step were looked up before it."""
        self.hparams = hparams
        self.shape = shape
        self.inputs = inputs
        self._weights = weights
        self._cache = cache
        self._takes_embd = takes_embd
        self.last_stored: tuple[Tensor, ...] = ()
        """The cache as the newest layer left it, flat: keys, values."""
        self.states: list[Tensor] = []
        """The states that the layers so far have written back, which nothing in the step reads again."""
        self.neighbours: list[Tensor] = []
        """Products of one input, which a graph had better compute one after the other: a device can join them."""

    def embed(self, factor: float = 1.0) -> Tensor:
        """Look up the tokens, unless the step before did, times a factor: [n_embd, n_total]."""
        found = self.inputs.embd
        if not self._takes_embd:
            found = _named(build.get_rows(self._weights["token_embd.weight"], self.inputs.tokens), "embd")
        return self.scaled(found, factor, "embd_scaled")

    def weight(self, name: str) -> Tensor:
        """Return a weight as it is."""
        return self._weights[name]

    def weight_or_none(self, name: str) -> Tensor | None:
        """Return a weight if the model has it."""
        return self._weights.get(name)

    def cache(self, layer: int) -> LayerCache:
        """Return what a layer keeps from step to step."""
        return self._cache[layer]

    @staticmethod
    def named(tensor: Tensor, name: str) -> Tensor:
        """Give a tensor a name."""
        return _named(tensor, name)

    def scaled(self, x: Tensor, factor: float, name: str) -> Tensor:
        """Multiply by a factor, if it is not 1."""
        return x if factor == 1.0 else _named(build.scale(x, factor), name)

    def capped(self, x: Tensor, limit: float, name: str) -> Tensor:
        """Bend values softly to stay within ± `limit`; 0 is no limit."""
        if not limit:
            return x
        bent = build.unary(Unary.TANH, build.scale(x, 1.0 / limit))
        return _named(build.scale(bent, limit), name)

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
        if f"blk.{layer}.attn_qkv.weight" in self._weights:
            return self._project_at_once(x, layer)
        q = self.linear(x, f"blk.{layer}.attn_q", f"Qcur-{layer}")
        k = self.linear(x, f"blk.{layer}.attn_k", f"Kcur-{layer}")
        v = self.linear(x, f"blk.{layer}.attn_v", f"Vcur-{layer}")
        self.neighbours += [q, k, v]
        return (
            build.reshape(q, (hparams.head_k, hparams.n_head, n_total)),
            build.reshape(k, (hparams.head_k, hparams.n_head_kv, n_total)),
            build.reshape(v, (hparams.head_v, hparams.n_head_kv, n_total)),
        )

    def _project_at_once(self, x: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """The same with one matrix whose rows are those of queries, keys and values: windows of one result."""
        hparams, n_total = self.hparams, self.shape.n_total
        joined = self.linear(x, f"blk.{layer}.attn_qkv", f"qkv-{layer}")
        parts, start = [], 0
        for head, heads in (
            (hparams.head_k, hparams.n_head), (hparams.head_k, hparams.n_head_kv), (hparams.head_v, hparams.n_head_kv),
        ):  # fmt: skip
            row = joined.nb[0] * head
            parts.append(
                build.view(joined, (head, heads, n_total), (joined.nb[0], row, joined.nb[1], joined.nb[2]), start)
            )
            start += row * heads
        return parts[0], parts[1], parts[2]

    def rope(self, x: Tensor, layer: int, name: str) -> Tensor:
        """Turn heads [head, heads, n_total] by their token's position."""
        hparams = self.hparams
        rope = hparams.window.rope if hparams.window is not None and hparams.has_window(layer) else hparams.rope
        turned = build.rope(
            x,
            self.inputs.positions,
            self._rope_factors(layer, rope),
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

    def _rope_factors(self, layer: int, rope: Rope) -> Tensor | None:
        """The factors of a layer; of two sets the long ones where sequences are longer than the trained context."""
        is_long = self._cache[layer].n_ctx_seq > rope.n_ctx_orig + SPARE_CELLS
        return self._weights.get(f"blk.{layer}.rope_freqs.weight") or self._weights.get(
            f"blk.{layer}.rope_factors_{'long' if is_long else 'short'}.weight"
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float | None = None) -> Tensor:
        """Store keys and values, let the queries look at their sequence's cells, and project the result.

        `scale` is the factor on the product of a query and a key, the model's own if left out.

        Shapes: q, k, v as from `project`; the result is [n_embd, n_total].
        """
        return self.linear(self.look(q, k, v, layer, scale), f"blk.{layer}.attn_output", f"attn_out-{layer}")

    def look(self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float | None = None) -> Tensor:
        """The same without the projection: [head_v * n_head, n_total]."""
        hparams, shape, cache = self.hparams, self.shape, self._cache[layer]
        stored_k = _named(self._store(cache.k, k), f"cache_k_stored-{layer}")
        stored_v = _named(self._store(cache.v, v), f"cache_v_stored-{layer}")
        self.last_stored = (stored_k, stored_v)
        seen_k = window(stored_k, cache, hparams.head_k, shape.first_seq, shape.n_seqs, shape.n_kv)
        seen_v = window(stored_v, cache, hparams.head_v, shape.first_seq, shape.n_seqs, shape.n_kv)
        by_sequence = build.reshape(q, (hparams.head_k, hparams.n_head, shape.n_tokens, shape.n_seqs))
        queries = build.permute(by_sequence, 0, 2, 1, 3)  # [head_k, n_tokens, n_head, n_seqs]
        kernel = self._fused_attention if shape.flash_attn else self._plain_attention
        attended = kernel(queries, seen_k, seen_v, layer, self.hparams.attention_scale if scale is None else scale)
        return build.reshape(attended, (hparams.head_v * hparams.n_head, shape.n_total))

    def _store(self, cache: Tensor, values: Tensor) -> Tensor:
        nb = values.nb  # heads lie behind one another, tokens may be further apart
        rows = build.view(values, (cache.ne[0], self.shape.n_total), (nb[0], nb[2], nb[3], nb[3]))
        return build.set_rows(flat(cache), rows, self.inputs.kv_rows)  # [embd, n_ctx_seq * n_seq]

    def _mask(self, layer: int) -> Tensor:
        return self.inputs.window_mask if self.hparams.has_window(layer) else self.inputs.mask

    def _sinks(self, layer: int) -> Tensor | None:
        return self._weights.get(f"blk.{layer}.attn_sinks.weight")

    def _fused_attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float) -> Tensor:
        """[head_v, n_head, n_tokens, n_seqs] in one operation."""
        softcap = self.hparams.attention_softcap
        mask, sinks = self._mask(layer), self._sinks(layer)
        return _named(build.flash_attn_ext(q, k, v, mask, scale, 0.0, softcap, sinks), f"kqv-{layer}")

    def _plain_attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float) -> Tensor:
        """The same from products and SOFT_MAX."""
        products = _named(build.mul_mat(k, q), f"kq-{layer}")  # [n_kv, n_tokens, n_head, n_seqs]
        if self.hparams.attention_softcap:
            products = self.capped(build.scale(products, scale), self.hparams.attention_softcap, f"kq_capped-{layer}")
            scale = 1.0
        shares = build.soft_max(products, self._mask(layer), scale, 0.0, self._sinks(layer))
        columns = build.cont(build.transpose(v))  # [n_kv, head_v, n_head_kv, n_seqs]
        mixed = _named(build.mul_mat(columns, shares), f"kqv-{layer}")  # [head_v, n_tokens, n_head, n_seqs]
        return build.cont(build.permute(mixed, 0, 2, 1, 3))

    def keep_outputs(self, x: Tensor, layer: int) -> Tensor:
        """Behind the last layer's attention, keep the tokens whose logits are asked: [features, n_outputs]."""
        is_last = layer == self.hparams.n_layer - 1
        if not is_last or self.shape.n_outputs in (0, self.shape.n_total):
            return x
        return build.get_rows(x, self.inputs.output_rows)

    def gated_mlp(self, x: Tensor, layer: int, function: Glu = Glu.SWIGLU, suffix: str = "") -> Tensor:
        """The gated MLP: down(activation(gate(x)) * up(x)). `suffix` names another one of the layer, as `_shexp`."""
        gate = self.linear(x, f"blk.{layer}.ffn_gate{suffix}", f"ffn_gate{suffix}-{layer}")
        up = self.linear(x, f"blk.{layer}.ffn_up{suffix}", f"ffn_up{suffix}-{layer}")
        gated = _named(build.glu(function, gate, up), f"ffn_gated{suffix}-{layer}")
        return self.linear(gated, f"blk.{layer}.ffn_down{suffix}", f"ffn_out{suffix}-{layer}")

    def add(self, x: Tensor, y: Tensor, name: str) -> Tensor:
        return _named(build.add(x, y), name)


def _named(tensor: Tensor, name: str) -> Tensor:
    tensor.name = name
    return tensor
