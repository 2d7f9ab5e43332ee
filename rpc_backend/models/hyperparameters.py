"""Hyperparameters: what the metadata of a GGUF file says about a model's shape.

Belongs here: every architecture metadata key this project reads, its default and its checks. Must not
be here: tokenizer keys (the host's vocabulary), tensors.

Source: key names and defaults are those of llama.cpp's model loader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rpc_backend.errors import ModelFileError, UnsupportedModelError
from rpc_backend.graph import RopeMode

ARCHITECTURE_KEY = "general.architecture"
_TOKENS_KEY = "tokenizer.ggml.tokens"
_BETA_FAST, _BETA_SLOW = 32.0, 1.0


class RopeScaling(StrEnum):
    """How positions beyond the trained context are squeezed into it."""

    NONE = "none"
    LINEAR = "linear"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotary position embedding, in the terms of the ROPE operation."""

    mode: RopeMode
    n_dims: int
    scaling: RopeScaling
    n_ctx_orig: int
    freq_base: float
    freq_scale: float
    ext_factor: float
    attn_factor: float
    beta_fast: float = _BETA_FAST
    beta_slow: float = _BETA_SLOW


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The shape of a model. `head_k` and `head_v` are elements per head of keys and values."""

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

    @property
    def attention_scale(self) -> float:
        """The factor on the product of a query and a key."""
        return 1.0 / math.sqrt(self.head_k)


def read_architecture(metadata: Mapping[str, Any]) -> str:
    """Return the architecture's name.

    Raises:
        ModelFileError: the file does not say.
    """
    name = metadata.get(ARCHITECTURE_KEY)
    if not isinstance(name, str) or not name:
        raise ModelFileError(f"metadata key {ARCHITECTURE_KEY} is {_describe(name)}; it must name the architecture")
    return name


def read_hyperparameters(metadata: Mapping[str, Any], rope_mode: RopeMode) -> Hyperparameters:
    """Read and check the metadata of one architecture; `rope_mode` is what that architecture uses.

    Raises:
        ModelFileError: a key is missing or has a bad value; the message names it.
        UnsupportedModelError: a feature that is not supported (experts, no causal mask, longrope, layers of
            unequal shape).
    """
    keys = _Keys(metadata, read_architecture(metadata))
    _refuse_unsupported(keys)
    n_embd, n_head = keys.count("embedding_length"), keys.count("attention.head_count")
    n_head_kv = keys.count("attention.head_count_kv", n_head)
    if n_head % n_head_kv:
        raise ModelFileError(f"{keys.name('attention.head_count_kv')} = {n_head_kv} does not divide {n_head} heads")
    head_k = keys.count("attention.key_length", n_embd // n_head or None)
    return Hyperparameters(
        architecture=keys.architecture,
        n_vocab=_n_vocab(keys),
        n_ctx_train=keys.count("context_length"),
        n_embd=n_embd,
        n_layer=keys.count("block_count"),
        n_ff=keys.count("feed_forward_length"),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_k=head_k,
        head_v=keys.count("attention.value_length", n_embd // n_head or None),
        rms_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(keys, rope_mode, head_k),
    )


class _Keys:
    """Typed reads of the keys of one architecture; every complaint names the key."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata = metadata
        self.architecture = architecture

    def name(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def value(self, key: str) -> Any:
        return self.metadata.get(self.name(key))

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above 0; a list of one number per layer must repeat the same."""
        value = self.value(key)
        if isinstance(value, list) and value:
            if any(item != value[0] for item in value):
                raise UnsupportedModelError(f"metadata key {self.name(key)} differs between layers: {value[:8]}")
            value = value[0]
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelFileError(f"metadata key {self.name(key)} is {_describe(value)}; it must be a count above 0")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.value(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ModelFileError(f"metadata key {self.name(key)} is {_describe(value)}; it must be a number above 0")
        return float(value)


def _describe(value: Any) -> str:
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _refuse_unsupported(keys: _Keys) -> None:
    if keys.value("expert_count"):
        raise UnsupportedModelError(
            f"{keys.name('expert_count')} = {keys.value('expert_count')}: mixtures of experts are not supported"
        )
    if keys.value("attention.causal") is False:
        raise UnsupportedModelError(
            f"{keys.name('attention.causal')} is false: only models that generate are supported"
        )


def _n_vocab(keys: _Keys) -> int:
    tokens = keys.metadata.get(_TOKENS_KEY)
    if isinstance(tokens, list) and tokens:
        return len(tokens)
    if tokens is None and keys.value("vocab_size") is not None:
        return keys.count("vocab_size")
    raise ModelFileError(f"metadata key {_TOKENS_KEY} is {_describe(tokens)}; it must list the vocabulary")


def _rope(keys: _Keys, mode: RopeMode, head_k: int) -> Rope:
    n_dims = keys.count("rope.dimension_count", head_k)
    if n_dims > head_k or n_dims % 2:
        name = keys.name("rope.dimension_count")
        raise ModelFileError(f"metadata key {name} is {n_dims}; it must be even and at most the head size {head_k}")
    scaling = _scaling(keys)
    factor = 1.0 if scaling is RopeScaling.NONE else _scaling_factor(keys)
    own_factor = keys.number("rope.scaling.attn_factor", 1.0)
    is_yarn = scaling is RopeScaling.YARN
    return Rope(
        mode=mode,
        n_dims=n_dims,
        scaling=scaling,
        n_ctx_orig=keys.count("rope.scaling.original_context_length", keys.count("context_length")),
        freq_base=keys.number("rope.freq_base", 10000.0),
        freq_scale=1.0 / factor,
        ext_factor=1.0 if is_yarn else 0.0,
        attn_factor=own_factor * (_yarn_attn_factor(keys, factor) if is_yarn else 1.0),
    )


def _scaling(keys: _Keys) -> RopeScaling:
    value = keys.value("rope.scaling.type")
    if value is None:
        return RopeScaling.LINEAR
    known = [member.value for member in RopeScaling]
    if value not in known:
        name = keys.name("rope.scaling.type")
        raise UnsupportedModelError(f"metadata key {name} is {_describe(value)}; supported: {', '.join(known)}")
    return RopeScaling(value)


def _scaling_factor(keys: _Keys) -> float:
    """The context's growth; the second key is an older name of the first, and 0 means none."""
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        if keys.value(key) is not None:
            return 1.0 if keys.value(key) == 0 else keys.number(key)
    return 1.0


def _yarn_attn_factor(keys: _Keys, factor: float) -> float:
    """The operation multiplies by `1 + 0.1 ln(factor)` itself; divide it out where YaRN has none.

    Source: YaRN's attention temperature, which holds for factors above 1 only; llama.cpp's context setup.
    """
    built_in = 1.0 + 0.1 * math.log(factor)
    if built_in <= 0:
        raise ModelFileError(f"metadata key {keys.name('rope.scaling.factor')} is {factor}, too small for YaRN")
    return 1.0 if factor > 1 else 1.0 / built_in
