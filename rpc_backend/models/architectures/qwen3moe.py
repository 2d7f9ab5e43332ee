"""qwen3moe: Qwen 3 with experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rpc_backend.graph import RopeMode, Tensor
from rpc_backend.models.architectures.qwen3 import Qwen3
from rpc_backend.models.experts import Mixing, expert_specs, mix_experts
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, attention_specs, norm_spec


class Qwen3Moe(Qwen3):
    """Attention as in qwen3; the shares of a token's experts add up to 1."""

    traits: ClassVar[Traits] = Traits(RopeMode.NEOX, experts="needed")

    def mlp(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        return mix_experts(parts, x, layer, Mixing(normalised=True))

    def layer_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        yield from attention_specs(hparams, layer)
        yield norm_spec(layer, "attn_q_norm", hparams.head_k)
        yield norm_spec(layer, "attn_k_norm", hparams.head_k)
        yield norm_spec(layer, "ffn_norm", hparams.n_embd)
        yield from expert_specs(hparams, layer)
