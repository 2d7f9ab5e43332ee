"""gemma: the first Gemma models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from rpc_backend.graph import Glu, RopeMode, Tensor
from rpc_backend.models.architectures.architecture import Architecture
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, attention_specs, mlp_specs


class Gemma(Architecture):
    """Embeddings are scaled by the root of their width, queries are scaled themselves, the MLP is gated by GELU."""

    traits: ClassVar[Traits] = Traits(RopeMode.NEOX)

    def embedding_factor(self, hparams: Hyperparameters) -> float:
        return math.sqrt(hparams.n_embd)

    def query_scale(self, hparams: Hyperparameters) -> float:
        """The factor on queries."""
        return hparams.attention_scale

    def turned(self, parts: LayerBuilder, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return queries and keys as attention compares them."""
        q, k = parts.rope(q, layer, "Qcur_roped"), parts.rope(k, layer, "Kcur_roped")
        return parts.scaled(q, self.query_scale(parts.hparams), f"Qcur_scaled-{layer}"), k

    def attention(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        q, k, v = parts.project(x, layer)
        q, k = self.turned(parts, q, k, layer)
        return parts.attend(q, k, v, layer, scale=1.0)

    def mlp(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        return parts.gated_mlp(x, layer, Glu.GEGLU)

    def layer_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        yield from attention_specs(hparams, layer)
        yield from mlp_specs(hparams, layer)
