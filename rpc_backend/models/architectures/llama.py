"""llama: Llama 1 to 3 and the many models of that shape (SmolLM2, Mistral, Mixtral, …)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rpc_backend.graph import RopeMode, Tensor
from rpc_backend.models.architectures.architecture import Architecture
from rpc_backend.models.experts import Mixing, expert_specs, mix_experts
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, attention_specs, mlp_specs, norm_spec, rope_factor_spec


class Llama(Architecture):
    """Neighbouring elements are turned together, with frequency factors where the file has them (Llama 3)."""

    traits: ClassVar[Traits] = Traits(RopeMode.NORMAL, experts="optional")

    def attention(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        q, k, v = parts.project(x, layer)
        q, k = parts.rope(q, layer, "Qcur_roped"), parts.rope(k, layer, "Kcur_roped")
        return parts.attend(q, k, v, layer)

    def layer_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        yield from attention_specs(hparams, layer)
        yield rope_factor_spec(hparams, layer)
        if hparams.experts is None:
            yield from mlp_specs(hparams, layer)
        else:
            yield norm_spec(layer, "ffn_norm", hparams.n_embd)
            yield from expert_specs(hparams, layer)

    def mlp(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        if parts.hparams.experts is None:
            return parts.gated_mlp(x, layer)
        return mix_experts(parts, x, layer, Mixing(normalised=True))
