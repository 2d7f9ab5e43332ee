"""Linear attention with a gated delta net: a state per head instead of a cache.

Belongs here: the short convolution, the recurrence, and how states are read and written back. Must not be here:
attention over a cache (`layers`).

A padding slot must leave the states as they are: its gate and its beta are 0, so that it forgets and learns nothing,
and the inputs that the convolution keeps are those before it. A sequence without tokens starts from states of 0.

Source: the order of operations is that of llama.cpp's graphs; states of the convolution are kept by token here.
"""

from __future__ import annotations

from collections.abc import Iterator

from rpc_backend.graph import Tensor, Unary, build
from rpc_backend.models.hyperparameters import Hyperparameters, LinearAttention
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, norm_spec


def delta_net_specs(hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
    """The matrices and factors of one layer."""
    linear, n_embd = linear_of(hparams), hparams.n_embd
    for part, n_rows in (
        ("attn_qkv", linear.n_channels), ("attn_gate", linear.n_inner), ("ssm_beta", linear.n_head),
        ("ssm_alpha", linear.n_head),
    ):  # fmt: skip
        yield WeightSpec(f"blk.{layer}.{part}.weight", (n_embd, n_rows), layer)
    yield WeightSpec(f"blk.{layer}.ssm_conv1d.weight", (linear.conv_width, linear.n_channels), layer)
    yield WeightSpec(f"blk.{layer}.ssm_dt.bias", (linear.n_head,), layer)
    yield WeightSpec(f"blk.{layer}.ssm_a", (linear.n_head,), layer)
    yield norm_spec(layer, "ssm_norm", linear.head)
    yield WeightSpec(f"blk.{layer}.ssm_out.weight", (linear.n_inner, n_embd), layer)


def linear_of(hparams: Hyperparameters) -> LinearAttention:
    """Return the linear attention of an architecture that has it."""
    assert hparams.linear is not None, "the architecture's traits have linear attention"
    return hparams.linear


def delta_net(parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
    """Return what linear attention adds to normed activations `x`: [n_embd, n_total]."""
    linear, shape = linear_of(parts.hparams), parts.shape
    n_tokens, n_seqs = shape.n_tokens, shape.n_seqs
    mixed = parts.linear(x, f"blk.{layer}.attn_qkv", f"qkv_mixed-{layer}")
    convolved = _convolve(parts, build.reshape(mixed, (linear.n_channels, n_tokens, n_seqs)), layer)
    q, k, v = _heads(parts, convolved, linear)
    gate, beta = _gates(parts, x, layer)
    cache = parts.cache(layer)
    stored = _of_sequences(parts, cache.v)  # [n_state, 1, n_seqs]
    state = build.reshape(_begun(parts, stored), (linear.head, linear.head, linear.n_head, n_seqs))
    result = parts.named(build.gated_delta_net(q, k, v, gate, beta, state), f"delta_net-{layer}")
    n_out = linear.n_inner * shape.n_total
    new_state = build.view(result, (linear.n_state, 1, n_seqs), offset_bytes=4 * n_out)
    parts.states.append(parts.named(build.cpy(new_state, stored), f"state_stored-{layer}"))
    heads = (linear.head, linear.n_head, shape.n_total)
    normed = parts.norm(build.view(result, heads), f"blk.{layer}.ssm_norm", f"ssm_norm-{layer}")
    z = build.unary(Unary.SILU, parts.linear(x, f"blk.{layer}.attn_gate", f"z-{layer}"))
    gated = build.mul(normed, build.reshape(z, heads))
    joined = build.reshape(gated, (linear.n_inner, shape.n_total))
    return parts.linear(joined, f"blk.{layer}.ssm_out", f"linear_attn_out-{layer}")


def _of_sequences(parts: LayerBuilder, stored: Tensor) -> Tensor:
    """Return the planes of the step's sequences: a view [n0, n1, n_seqs]."""
    shape = parts.shape
    return build.view(stored, (*stored.ne[:2], shape.n_seqs), stored.nb, shape.first_seq * stored.nb[2])


def _begun(parts: LayerBuilder, state: Tensor) -> Tensor:
    """Return the states of the step's sequences, 0 for those that begin: [n0, n1, n_seqs]."""
    return build.mul(state, build.reshape(parts.inputs.has_past, (1, 1, parts.shape.n_seqs)))


def _convolve(parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
    """Convolve each channel over the last tokens, and keep the newest inputs: [n_channels, n_tokens, n_seqs]."""
    stored = _of_sequences(parts, parts.cache(layer).k)
    joined = build.concat(_begun(parts, stored), x, 1)  # [n_channels, conv_width - 1 + n_tokens, n_seqs]
    newest = build.get_rows(joined, parts.inputs.conv_rows)
    parts.states.append(parts.named(build.cpy(newest, stored), f"conv_stored-{layer}"))
    by_channel = build.cont(build.transpose(joined))
    convolved = build.ssm_conv(by_channel, parts.weight(f"blk.{layer}.ssm_conv1d.weight"))
    return parts.named(build.unary(Unary.SILU, convolved), f"conv_silu-{layer}")


def _heads(parts: LayerBuilder, convolved: Tensor, linear: LinearAttention) -> tuple[Tensor, Tensor, Tensor]:
    """Cut queries, keys and values out of the convolution; queries and keys get length 1.

    Shapes: [head, heads, n_tokens, n_seqs].
    """
    head, n_k = linear.head, linear.n_head_k
    nb = (4, 4 * head, convolved.nb[1], convolved.nb[2])

    def window(n_heads: int, first: int) -> Tensor:
        ne = (head, n_heads, parts.shape.n_tokens, parts.shape.n_seqs)
        return build.view(convolved, ne, nb, 4 * head * first)

    eps = parts.hparams.rms_eps / head
    q, k = (build.scale(build.rms_norm(window(n_k, first), eps), head**-0.5) for first in (0, n_k))
    return q, k, window(linear.n_head, 2 * n_k)


def _gates(parts: LayerBuilder, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """How much each head forgets, and how far it moves towards a token's value: [1, n_head, n_tokens, n_seqs]."""
    shape = parts.shape
    heads = (1, linear_of(parts.hparams).n_head, shape.n_tokens, shape.n_seqs)
    is_token = build.reshape(parts.inputs.is_token, (1, shape.n_total))
    beta = build.unary(Unary.SIGMOID, parts.linear(x, f"blk.{layer}.ssm_beta", f"beta-{layer}"))
    alpha = parts.linear(x, f"blk.{layer}.ssm_alpha", f"alpha-{layer}")
    step = build.unary(Unary.SOFTPLUS, build.add(alpha, parts.weight(f"blk.{layer}.ssm_dt.bias")))
    gate = build.mul(step, parts.weight(f"blk.{layer}.ssm_a"))
    gate, beta = (build.reshape(build.mul(value, is_token), heads) for value in (gate, beta))
    return gate, beta
