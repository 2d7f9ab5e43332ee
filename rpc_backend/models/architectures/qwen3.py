"""qwen3: the dense Qwen 3 models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rpc_backend.graph import RopeMode, Tensor
from rpc_backend.models.architectures.architecture import Architecture
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, attention_specs, mlp_specs, norm_spec


class Qwen3(Architecture):
    """Every head of queries and keys is normed before it is turned."""

    traits: ClassVar[Traits] = Traits(RopeMode.NEOX)

    def attention(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        q, k, v = parts.project(x, layer)
        q = parts.norm(q, f"blk.{layer}.attn_q_norm", f"Qcur_normed-{layer}")
        k = parts.norm(k, f"blk.{layer}.attn_k_norm", f"Kcur_normed-{layer}")
        q, k = parts.rope(q, layer, "Qcur_roped"), parts.rope(k, layer, "Kcur_roped")
        return parts.attend(q, k, v, layer)

    def layer_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        yield from attention_specs(hparams, layer)
        yield norm_spec(layer, "attn_q_norm", hparams.head_k)
        yield norm_spec(layer, "attn_k_norm", hparams.head_k)
        yield from mlp_specs(hparams, layer)
