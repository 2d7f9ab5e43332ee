"""gemma2: Gemma 2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rpc_backend.graph import RopeMode, Tensor
from rpc_backend.models.architectures.gemma import Gemma
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, norm_spec


class Gemma2(Gemma):
    """Every second layer has a window, scores and logits are capped softly, and what a layer adds is normed."""

    traits: ClassVar[Traits] = Traits(
        RopeMode.NEOX, window_period=2, window=4096, attention_softcap=50.0, final_softcap=30.0
    )
    n_layer_of_27b: ClassVar[int] = 46
    """The model that scales its queries by the width of a head if all heads shared the embedding."""

    def query_scale(self, hparams: Hyperparameters) -> float:
        if hparams.n_layer == self.n_layer_of_27b:
            return (hparams.n_embd // hparams.n_head) ** -0.5
        return hparams.attention_scale

    def attention(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        attended = super().attention(parts, x, layer)
        return parts.norm(attended, f"blk.{layer}.post_attention_norm", f"attn_post_norm-{layer}")

    def mlp(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        return parts.norm(super().mlp(parts, x, layer), f"blk.{layer}.post_ffw_norm", f"ffn_post_norm-{layer}")

    def layer_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        yield from super().layer_specs(hparams, layer)
        yield norm_spec(layer, "post_attention_norm", hparams.n_embd)
        yield norm_spec(layer, "post_ffw_norm", hparams.n_embd)
