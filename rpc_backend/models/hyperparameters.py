"""Hyperparameters: what the metadata of a GGUF file says about a model's shape.

Belongs here: every architecture metadata key this project reads but those of rope (`rope_parameters`), its default and
its checks. Must not be here: tokenizer keys (the host's vocabulary), tensors.

Source: key names and defaults are those of llama.cpp's model loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rpc_backend.errors import ModelFileError, UnsupportedModelError
from rpc_backend.graph import RopeMode
from rpc_backend.models.metadata_keys import MetadataKeys, describe
from rpc_backend.models.rope_parameters import Rope, WindowRope, read_rope, windowed_rope

ARCHITECTURE_KEY = "general.architecture"
_TOKENS_KEY = "tokenizer.ggml.tokens"
_LINEAR_PERIOD = 4


@dataclass(frozen=True, slots=True)
class Traits:
    """What an architecture reads beyond the keys that all have, and its defaults.

    `window_period` is how often a layer without a window comes (0 = no layer has one), `window` the size where the
    file names none (0 = there is none then). A soft cap of None is not read; another is the default.
    """

    rope_mode: RopeMode
    experts: Literal["none", "optional", "needed"] = "none"
    window_period: int = 0
    window: int = 0
    window_rope: WindowRope = "same"
    attention_softcap: float | None = None
    final_softcap: float | None = None
    takes_longrope: bool = False
    has_scales: bool = False
    has_linear_attention: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture: each token goes through `n_used` of `n_expert` MLPs of width `n_ff`, some models also through a shared
    one of `n_ff_shared`."""

    n_expert: int
    n_used: int
    n_ff: int
    n_ff_shared: int


@dataclass(frozen=True, slots=True)
class Window:
    """Attention to the last `size` tokens only, in the layers that are marked, which turn by `rope`."""

    size: int
    layers: tuple[bool, ...]
    rope: Rope


@dataclass(frozen=True, slots=True)
class LinearAttention:
    """Gated delta nets in the layers that are marked: `n_head` states of `head` x `head` behind a short convolution."""

    n_head: int
    n_head_k: int
    head: int
    conv_width: int
    layers: tuple[bool, ...]

    @property
    def n_inner(self) -> int:
        """Elements of a token's values, all heads together."""
        return self.head * self.n_head

    @property
    def n_channels(self) -> int:
        """Elements of a token that are convolved: queries, keys and values."""
        return 2 * self.head * self.n_head_k + self.n_inner

    @property
    def n_state(self) -> int:
        """Elements of a sequence's states, all heads together."""
        return self.head * self.head * self.n_head


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors that a model was trained with; 1 changes nothing."""

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The shape of a model. `head_k` and `head_v` are elements per head of keys and values; a soft cap of 0 is none."""

    architecture: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_k: int
    head_v: int
    rms_eps: float
    rope: Rope
    attention_scale: float
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    experts: Experts | None = None
    window: Window | None = None
    linear: LinearAttention | None = None
    scales: Scales = Scales()

    @property
    def n_embd_q(self) -> int:
        """Elements of a token's queries, all heads together."""
        return self.head_k * self.n_head

    @property
    def n_embd_k(self) -> int:
        """Elements of a token's keys, all heads together."""
        return self.head_k * self.n_head_kv

    @property
    def n_embd_v(self) -> int:
        """Elements of a token's values, all heads together."""
        return self.head_v * self.n_head_kv

    def has_window(self, layer: int) -> bool:
        """Whether attention of a layer sees the last tokens only."""
        return self.window is not None and self.window.layers[layer]

    def has_state(self, layer: int) -> bool:
        """Whether a layer carries a state from token to token instead of a cache of keys and values."""
        return self.linear is not None and self.linear.layers[layer]


def read_architecture(metadata: Mapping[str, Any]) -> str:
    """Return the architecture's name.

    Raises:
        ModelFileError: the file does not say.
    """
    name = metadata.get(ARCHITECTURE_KEY)
    if not isinstance(name, str) or not name:
        raise ModelFileError(f"metadata key {ARCHITECTURE_KEY} is {describe(name)}; it must name the architecture")
    return name


def read_hyperparameters(metadata: Mapping[str, Any], traits: Traits) -> Hyperparameters:
    """Read and check the metadata of one architecture, which has `traits`.

    Raises:
        ModelFileError: a key is missing or has a bad value; the message names it.
        UnsupportedModelError: a feature that is not supported (no causal mask, layers of unequal shape).
    """
    keys = MetadataKeys(metadata, read_architecture(metadata))
    _refuse_unsupported(keys, traits)
    n_embd, n_head = keys.count("embedding_length"), keys.count("attention.head_count")
    n_head_kv = keys.count("attention.head_count_kv", n_head)
    if n_head % n_head_kv:
        raise ModelFileError(f"{keys.name('attention.head_count_kv')} = {n_head_kv} does not divide {n_head} heads")
    n_layer = keys.count("block_count")
    head_k = keys.count("attention.key_length", n_embd // n_head or None)
    rope = read_rope(keys, traits.rope_mode, head_k, takes_long=traits.takes_longrope)
    n_ff = keys.count("feed_forward_length", keys.count_or_none("expert_feed_forward_length") or None)
    return Hyperparameters(
        architecture=keys.architecture,
        n_vocab=_n_vocab(keys),
        n_ctx_train=keys.count("context_length"),
        n_embd=n_embd,
        n_layer=n_layer,
        n_ff=n_ff,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_k=head_k,
        head_v=keys.count("attention.value_length", n_embd // n_head or None),
        rms_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        attention_scale=(keys.number_or_none("attention.scale") if traits.has_scales else 0.0) or head_k**-0.5,
        attention_softcap=_softcap(keys, "attn_logit_softcapping", traits.attention_softcap),
        final_softcap=_softcap(keys, "final_logit_softcapping", traits.final_softcap),
        experts=_experts(keys, traits, n_ff),
        window=_window(keys, traits, rope, n_layer),
        linear=_linear(keys, n_layer, rope) if traits.has_linear_attention else None,
        scales=_scales(keys) if traits.has_scales else Scales(),
    )


def _refuse_unsupported(keys: MetadataKeys, traits: Traits) -> None:
    n_expert = keys.value("expert_count")
    if n_expert and traits.experts == "none":
        name = keys.name("expert_count")
        raise UnsupportedModelError(f"{name} = {n_expert}: mixtures of experts are not supported here")
    if not n_expert and traits.experts == "needed":
        raise ModelFileError(f"metadata key {keys.name('expert_count')} is {describe(n_expert)}; it must be above 0")
    if keys.value("attention.causal") is False:
        name = keys.name("attention.causal")
        raise UnsupportedModelError(f"{name} is false: only models that generate are supported")


def _n_vocab(keys: MetadataKeys) -> int:
    tokens = keys.metadata.get(_TOKENS_KEY)
    if isinstance(tokens, list) and tokens:
        return len(tokens)
    if tokens is None and keys.value("vocab_size") is not None:
        return keys.count("vocab_size")
    raise ModelFileError(f"metadata key {_TOKENS_KEY} is {describe(tokens)}; it must list the vocabulary")


def _softcap(keys: MetadataKeys, key: str, default: float | None) -> float:
    return 0.0 if default is None else keys.number_or_none(key, default)


def _experts(keys: MetadataKeys, traits: Traits, n_ff: int) -> Experts | None:
    if not keys.value("expert_count"):
        return None
    n_expert, n_used = keys.count("expert_count"), keys.count("expert_used_count")
    if n_used > n_expert:
        raise ModelFileError(f"{keys.name('expert_used_count')} = {n_used} is more than the {n_expert} experts")
    width = n_ff // n_used if traits.experts == "needed" else n_ff
    own = keys.count_or_none("expert_feed_forward_length") or width
    return Experts(n_expert, n_used, own, keys.count_or_none("expert_shared_feed_forward_length") or n_ff)


def _window(keys: MetadataKeys, traits: Traits, rope: Rope, n_layer: int) -> Window | None:
    size = keys.count_or_none("attention.sliding_window") or traits.window
    if not traits.window_period or not size:
        return None
    key = "attention.sliding_window_pattern"
    if isinstance(keys.value(key), list):
        layers = keys.flags(key, n_layer) or ()
    else:
        period = keys.count(key, traits.window_period)
        layers = tuple(layer % period < period - 1 for layer in range(n_layer))
    return Window(size, layers, windowed_rope(keys, rope, traits.window_rope))


def _linear(keys: MetadataKeys, n_layer: int, rope: Rope) -> LinearAttention:
    _check_sections(keys, rope)
    period = keys.count("full_attention_interval", _LINEAR_PERIOD)
    every = tuple((layer + 1) % period != 0 for layer in range(n_layer))
    n_head, n_head_k = keys.count("ssm.time_step_rank"), keys.count("ssm.group_count")
    head, n_inner = keys.count("ssm.state_size"), keys.count("ssm.inner_size")
    if n_head % n_head_k or n_inner != head * n_head:
        raise ModelFileError(
            f"{keys.name('ssm.inner_size')} = {n_inner} is not {n_head} heads of {head}, or the {n_head_k} heads of "
            "keys do not divide them"
        )
    layers = keys.flags("attention.recurrent_layers", n_layer) or every
    return LinearAttention(n_head, n_head_k, head, keys.count("ssm.conv_kernel"), layers)


def _check_sections(keys: MetadataKeys, rope: Rope) -> None:
    """Text has the same place in time, height and width, so that sections of these three change nothing."""
    name, sections = keys.name("rope.dimension_sections"), keys.value("rope.dimension_sections")
    if not isinstance(sections, list) or not all(isinstance(item, int) and item >= 0 for item in sections[:4]):
        raise ModelFileError(f"metadata key {name} is {describe(sections)}; it must list the sections of a head")
    if sum(sections[:3]) != rope.n_dims // 2 or any(sections[3:]):
        raise UnsupportedModelError(
            f"{name} is {sections}: only sections of all {rope.n_dims // 2} pairs are supported"
        )


def _scales(keys: MetadataKeys) -> Scales:
    return Scales(
        embedding=keys.number_or_none("embedding_scale") or 1.0,
        residual=keys.number_or_none("residual_scale") or 1.0,
        logits=1.0 / keys.number("logit_scale"),
    )
