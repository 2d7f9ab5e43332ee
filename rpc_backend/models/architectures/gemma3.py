"""gemma3: Gemma 3, text only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rpc_backend.graph import RopeMode, Tensor
from rpc_backend.models.architectures.gemma2 import Gemma2
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, norm_spec


class Gemma3(Gemma2):
    """As gemma2, but every head of queries and keys is normed, nothing is capped by itself, and five of six layers have
    a window and turn at a base of their own."""

    traits: ClassVar[Traits] = Traits(RopeMode.NEOX, window_period=6, window_rope="own", final_softcap=0.0)
    n_layer_of_27b: ClassVar[int] = 62

    def turned(self, parts: LayerBuilder, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        q = parts.norm(q, f"blk.{layer}.attn_q_norm", f"Qcur_normed-{layer}")
        k = parts.norm(k, f"blk.{layer}.attn_k_norm", f"Kcur_normed-{layer}")
        return super().turned(parts, q, k, layer)

    def layer_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        yield from super().layer_specs(hparams, layer)
        yield norm_spec(layer, "attn_q_norm", hparams.head_k)
        yield norm_spec(layer, "attn_k_norm", hparams.head_k)
