"""qwen2moe: Qwen 1.5 and 2 with experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rpc_backend.graph import RopeMode, Tensor, Unary, build
from rpc_backend.models.architectures.qwen2 import Qwen2
from rpc_backend.models.experts import Mixing, expert_specs, experts_of, mix_experts
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, attention_specs, gated_specs, norm_spec


class Qwen2Moe(Qwen2):
    """Attention as in qwen2; beside the experts a shared MLP, which each token lets in by a gate of its own."""

    traits: ClassVar[Traits] = Traits(RopeMode.NEOX, experts="needed")

    def mlp(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        mixed = mix_experts(parts, x, layer, Mixing())
        gate = parts.linear(x, f"blk.{layer}.ffn_gate_inp_shexp", f"shared_gate-{layer}")  # [1, n]
        share = build.unary(Unary.SIGMOID, gate)
        shared = build.mul(parts.gated_mlp(x, layer, suffix="_shexp"), share)
        return parts.add(mixed, shared, f"ffn_out-{layer}")

    def layer_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        yield from attention_specs(hparams, layer)
        yield norm_spec(layer, "ffn_norm", hparams.n_embd)
        yield from expert_specs(hparams, layer)
        yield WeightSpec(f"blk.{layer}.ffn_gate_inp_shexp.weight", (hparams.n_embd, 1), layer)
        yield from gated_specs(hparams, layer, experts_of(hparams).n_ff_shared, "_shexp", takes_bias=False)
