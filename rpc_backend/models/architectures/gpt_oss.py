"""gpt-oss: OpenAI's open models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rpc_backend.graph import Glu, RopeMode, Tensor
from rpc_backend.models.architectures.architecture import Architecture
from rpc_backend.models.experts import Mixing, expert_specs, mix_experts
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, attention_specs, norm_spec

_MIXING = Mixing(chosen_only=True, function=Glu.SWIGLU_OAI, alpha=1.702, limit=7.0)


class GptOss(Architecture):
    """Every second layer has a window, every head a sink, every matrix a bias; experts are weighed among
    those chosen."""

    traits: ClassVar[Traits] = Traits(RopeMode.NEOX, experts="needed", window_period=2)
    mlp_norm: ClassVar[str] = "post_attention_norm"

    def attention(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        q, k, v = parts.project(x, layer)
        q, k = parts.rope(q, layer, "Qcur_roped"), parts.rope(k, layer, "Kcur_roped")
        return parts.attend(q, k, v, layer)

    def mlp(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        return mix_experts(parts, x, layer, _MIXING)

    def layer_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        yield from attention_specs(hparams, layer, needs_output_bias=True)
        yield WeightSpec(f"blk.{layer}.attn_sinks.weight", (hparams.n_head,), layer)
        yield norm_spec(layer, "post_attention_norm", hparams.n_embd)
        yield from expert_specs(hparams, layer, needs_bias=True)
