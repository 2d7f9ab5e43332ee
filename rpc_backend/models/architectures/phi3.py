"""phi3: Phi 3 and 3.5, without experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rpc_backend.graph import Glu, RopeMode, Tensor, build
from rpc_backend.models.architectures.architecture import Architecture
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, norm_spec, output_specs, rope_factor_spec


class Phi3(Architecture):
    """One matrix gives queries, keys and values, one gives gate and value of the MLP; long contexts turn by two sets of
    factors. The window that some files name is not used."""

    traits: ClassVar[Traits] = Traits(RopeMode.NEOX, takes_longrope=True)

    def attention(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        q, k, v = parts.project(x, layer)
        q, k = parts.rope(q, layer, "Qcur_roped"), parts.rope(k, layer, "Kcur_roped")
        q = parts.scaled(q, parts.hparams.attention_scale, f"Qcur_scaled-{layer}")
        return parts.attend(q, k, v, layer, scale=1.0)

    def mlp(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        both = parts.linear(x, f"blk.{layer}.ffn_up", f"ffn_up-{layer}")
        gated = parts.named(build.glu(Glu.SWIGLU, both), f"ffn_gated-{layer}")
        return parts.linear(gated, f"blk.{layer}.ffn_down", f"ffn_out-{layer}")

    def layer_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        n_embd, n_ff = hparams.n_embd, hparams.n_ff
        yield norm_spec(layer, "attn_norm", n_embd)
        n_rows = hparams.n_embd_q + hparams.n_embd_k + hparams.n_embd_v
        yield WeightSpec(f"blk.{layer}.attn_qkv.weight", (n_embd, n_rows), layer)
        yield WeightSpec(f"blk.{layer}.attn_qkv.bias", (n_rows,), layer, is_required=False)
        yield from output_specs(hparams, layer)
        yield rope_factor_spec(hparams, layer, "rope_factors_long")
        yield rope_factor_spec(hparams, layer, "rope_factors_short")
        yield norm_spec(layer, "ffn_norm", n_embd)
        yield WeightSpec(f"blk.{layer}.ffn_up.weight", (n_embd, 2 * n_ff), layer)
        yield WeightSpec(f"blk.{layer}.ffn_down.weight", (n_ff, n_embd), layer)
