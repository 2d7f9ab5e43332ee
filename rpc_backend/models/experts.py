"""Mixtures of experts: each token through the few MLPs that a router picks.

Belongs here: the router and the mixture. Must not be here: plain MLPs (`layers`).

Source: the order of operations is that of llama.cpp's graphs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rpc_backend.graph import Glu, Tensor, build
from rpc_backend.models.hyperparameters import Experts, Hyperparameters
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec

_SMALLEST_SUM = 2.0**-14
"""A sum of shares is not taken for less: the smallest normal number of F16."""


@dataclass(frozen=True, slots=True)
class Mixing:
    """How an architecture mixes: `chosen_only` weighs the experts by a softmax over those picked, instead of over all;
    `normalised` divides their shares by the sum. `alpha` and `limit` are those of the gated unit."""

    normalised: bool = False
    chosen_only: bool = False
    function: Glu = Glu.SWIGLU
    alpha: float = 0.0
    limit: float = 0.0


def expert_specs(hparams: Hyperparameters, layer: int, *, needs_bias: bool = False) -> Iterator[WeightSpec]:
    """The router and the three stacks of matrices, with biases where the architecture has them."""
    experts, n_embd = experts_of(hparams), hparams.n_embd
    yield WeightSpec(f"blk.{layer}.ffn_gate_inp.weight", (n_embd, experts.n_expert), layer)
    if needs_bias:
        yield WeightSpec(f"blk.{layer}.ffn_gate_inp.bias", (experts.n_expert,), layer)
    for part, ne in (
        ("ffn_gate_exps", (n_embd, experts.n_ff)), ("ffn_up_exps", (n_embd, experts.n_ff)),
        ("ffn_down_exps", (experts.n_ff, n_embd)),
    ):  # fmt: skip
        yield WeightSpec(f"blk.{layer}.{part}.weight", (*ne, experts.n_expert), layer)
        if needs_bias:
            yield WeightSpec(f"blk.{layer}.{part}.bias", (ne[1], experts.n_expert), layer)


def experts_of(hparams: Hyperparameters) -> Experts:
    """Return the mixture of an architecture that cannot be without one."""
    assert hparams.experts is not None, "the architecture's traits need experts"
    return hparams.experts


def mix_experts(parts: LayerBuilder, x: Tensor, layer: int, how: Mixing) -> Tensor:
    """Take each token of `x` [n_embd, n] through its experts: [n_embd, n]."""
    n_embd, n_tokens = x.ne[0], x.ne[1]
    n_used = experts_of(parts.hparams).n_used
    ids, shares = _route(parts, x, layer, how)
    rows = build.reshape(x, (n_embd, 1, n_tokens))
    up = _stacked(parts, rows, ids, layer, "ffn_up_exps")
    gate = _stacked(parts, rows, ids, layer, "ffn_gate_exps")
    gated = parts.named(build.glu(how.function, gate, up, alpha=how.alpha, limit=how.limit), f"ffn_moe_gated-{layer}")
    down = _stacked(parts, gated, ids, layer, "ffn_down_exps")
    weighed = parts.named(build.mul(down, shares), f"ffn_moe_weighted-{layer}")  # [n_embd, n_used, n]
    nb = (weighed.nb[0], weighed.nb[2], weighed.nb[3], weighed.nb[3])
    slots = [build.view(weighed, (n_embd, n_tokens), nb, slot * weighed.nb[1]) for slot in range(n_used)]
    total = slots[0]
    for slot in slots[1:]:
        total = build.add(total, slot)
    return parts.named(build.cont(total) if n_used == 1 else total, f"ffn_moe_out-{layer}")


def _route(parts: LayerBuilder, x: Tensor, layer: int, how: Mixing) -> tuple[Tensor, Tensor]:
    """Pick experts: their ids [n_used, n], and their shares [1, n_used, n]."""
    experts, n_tokens = experts_of(parts.hparams), x.ne[1]
    n_expert, n_used = experts.n_expert, experts.n_used
    scores = parts.linear(x, f"blk.{layer}.ffn_gate_inp", f"ffn_moe_logits-{layer}")  # [n_expert, n]
    if not how.chosen_only:
        scores = parts.named(build.soft_max(scores), f"ffn_moe_probs-{layer}")
    order = parts.named(build.argsort(scores, descending=True), f"ffn_moe_argsort-{layer}")
    ids = build.view(order, (n_used, n_tokens), order.nb)
    shares = build.get_rows(build.reshape(scores, (1, n_expert, n_tokens)), ids)  # [1, n_used, n]
    if how.chosen_only or how.normalised:
        flat = build.reshape(shares, (n_used, n_tokens))
        flat = build.soft_max(flat) if how.chosen_only else _normalised(flat)
        shares = build.reshape(flat, (1, n_used, n_tokens))
    return ids, shares


def _normalised(shares: Tensor) -> Tensor:
    return build.div(shares, build.clamp(build.sum_rows(shares), _SMALLEST_SUM, math.inf))


def _stacked(parts: LayerBuilder, x: Tensor, ids: Tensor, layer: int, part: str) -> Tensor:
    """Rows times the matrices that their ids name, plus the biases where there are any: [features, n_used, n]."""
    product = parts.named(build.mul_mat_id(parts.weight(f"blk.{layer}.{part}.weight"), x, ids), f"{part}-{layer}")
    bias = parts.weight_or_none(f"blk.{layer}.{part}.bias")
    return product if bias is None else parts.named(build.add_id(product, bias, ids), f"{part}_biased-{layer}")
