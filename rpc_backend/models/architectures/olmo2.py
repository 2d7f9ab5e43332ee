"""olmo2: OLMo 2 and 3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rpc_backend.graph import RopeMode, Tensor, build
from rpc_backend.models.architectures.architecture import Architecture
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, attention_specs, mlp_specs, norm_spec


class Olmo2(Architecture):
    """Norms stand behind attention and MLP instead of before them; all heads of queries, and of keys, are normed
    together."""

    traits: ClassVar[Traits] = Traits(RopeMode.NEOX, window_period=4, window_rope="plain")

    def attention(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        q, k, v = parts.project(x, layer)
        q, k = self._normed(parts, q, "q", layer), self._normed(parts, k, "k", layer)
        q, k = parts.rope(q, layer, "Qcur_roped"), parts.rope(k, layer, "Kcur_roped")
        attended = parts.attend(q, k, v, layer)
        return parts.norm(attended, f"blk.{layer}.post_attention_norm", f"attn_post_norm-{layer}")

    def _normed(self, parts: LayerBuilder, x: Tensor, name: str, layer: int) -> Tensor:
        flat = build.reshape(x, (x.ne[0] * x.ne[1], x.ne[2]))
        normed = parts.norm(flat, f"blk.{layer}.attn_{name}_norm", f"{name.upper()}cur_normed-{layer}")
        return build.reshape(normed, x.ne)

    def layer(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        attended = self.attention(parts, x, layer)
        attended, x = parts.keep_outputs(attended, layer), parts.keep_outputs(x, layer)
        x = parts.add(attended, x, f"ffn_inp-{layer}")
        mixed = parts.norm(self.mlp(parts, x, layer), f"blk.{layer}.post_ffw_norm", f"ffn_post_norm-{layer}")
        return parts.add(mixed, x, f"l_out-{layer}")

    def layer_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        yield from attention_specs(hparams, layer, has_norm=False)
        yield norm_spec(layer, "attn_q_norm", hparams.n_embd_q)
        yield norm_spec(layer, "attn_k_norm", hparams.n_embd_k)
        yield norm_spec(layer, "post_attention_norm", hparams.n_embd)
        yield from mlp_specs(hparams, layer, has_norm=False)
        yield norm_spec(layer, "post_ffw_norm", hparams.n_embd)
