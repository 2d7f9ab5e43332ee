"""qwen2: Qwen 2 and 2.5."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rpc_backend.graph import RopeMode, Tensor
from rpc_backend.models.architectures.architecture import Architecture
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, attention_specs, mlp_specs


class Qwen2(Architecture):
    """Queries, keys and values have biases; the two halves of a head are turned together."""

    traits: ClassVar[Traits] = Traits(RopeMode.NEOX)

    def attention(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        q, k, v = parts.project(x, layer)
        q, k = parts.rope(q, layer, "Qcur_roped"), parts.rope(k, layer, "Kcur_roped")
        return parts.attend(q, k, v, layer)

    def layer_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        yield from attention_specs(hparams, layer, needs_bias=True)
        yield from mlp_specs(hparams, layer)
