"""qwen35: the dense Qwen 3.5 models, text only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rpc_backend.graph import RopeMode, Tensor, Unary, build
from rpc_backend.models.architectures.architecture import Architecture
from rpc_backend.models.delta_net import delta_net, delta_net_specs
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, gated_specs, norm_spec


class Qwen35(Architecture):
    """Three of four layers are gated delta nets; in the others each head's output is let through by a gate."""

    traits: ClassVar[Traits] = Traits(RopeMode.NEOX, has_linear_attention=True)
    mlp_norm: ClassVar[str] = "post_attention_norm"

    def attention(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        hparams, n_total = parts.hparams, parts.shape.n_total
        if hparams.has_state(layer):
            return delta_net(parts, x, layer)
        head, n_head, n_head_kv = hparams.head_k, hparams.n_head, hparams.n_head_kv
        both = parts.linear(x, f"blk.{layer}.attn_q", f"Qcur_full-{layer}")  # per head: queries, then gate
        ne, nb = (head, n_head, n_total), (4, 8 * head, both.nb[1], both.nb[2])
        q, gate = build.view(both, ne, nb), build.view(both, ne, nb, 4 * head)
        k = build.reshape(parts.linear(x, f"blk.{layer}.attn_k", f"Kcur-{layer}"), (head, n_head_kv, n_total))
        v = build.reshape(parts.linear(x, f"blk.{layer}.attn_v", f"Vcur-{layer}"), (head, n_head_kv, n_total))
        q = parts.norm(q, f"blk.{layer}.attn_q_norm", f"Qcur_normed-{layer}")
        k = parts.norm(k, f"blk.{layer}.attn_k_norm", f"Kcur_normed-{layer}")
        q, k = parts.rope(q, layer, "Qcur_roped"), parts.rope(k, layer, "Kcur_roped")
        share = build.unary(Unary.SIGMOID, build.cont(gate, (head * n_head, n_total)))
        gated = parts.named(build.mul(parts.look(q, k, v, layer), share), f"attn_gated-{layer}")
        return parts.linear(gated, f"blk.{layer}.attn_output", f"attn_out-{layer}")

    def layer_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        yield norm_spec(layer, "attn_norm", hparams.n_embd)
        yield norm_spec(layer, "post_attention_norm", hparams.n_embd)
        if hparams.has_state(layer):
            yield from delta_net_specs(hparams, layer)
        else:
            yield from self._attention_specs(hparams, layer)
        yield from gated_specs(hparams, layer, hparams.n_ff, takes_bias=False)

    def _attention_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        n_embd = hparams.n_embd
        parts = {"attn_q": 2 * hparams.n_embd_q, "attn_k": hparams.n_embd_k, "attn_v": hparams.n_embd_v}
        for part, n_rows in parts.items():
            yield WeightSpec(f"blk.{layer}.{part}.weight", (n_embd, n_rows), layer)
        yield WeightSpec(f"blk.{layer}.attn_output.weight", (hparams.n_embd_q, n_embd), layer)
        yield norm_spec(layer, "attn_q_norm", hparams.head_k)
        yield norm_spec(layer, "attn_k_norm", hparams.head_k)
