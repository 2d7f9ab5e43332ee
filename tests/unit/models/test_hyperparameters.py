"""Hyperparameters: defaults, checks, and complaints that name the key."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rpc_backend.errors import ModelFileError, UnsupportedModelError
from rpc_backend.graph import RopeMode
from rpc_backend.models.hyperparameters import Hyperparameters, Traits, read_architecture, read_hyperparameters
from rpc_backend.models.rope_parameters import RopeScaling

BASE: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.context_length": 512,
    "llama.embedding_length": 96,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 6,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}


def read(**changes: Any) -> Hyperparameters:
    """Read BASE with changes; `__` stands for a dot, None removes a key of the architecture."""
    metadata = dict(BASE)
    for name, value in changes.items():
        metadata[f"llama.{name.replace('__', '.')}"] = value
    return read_hyperparameters({k: v for k, v in metadata.items() if v is not None}, Traits(RopeMode.NORMAL))


def test_defaults_follow_from_what_is_there() -> None:
    hparams = read()
    assert (hparams.architecture, hparams.n_vocab, hparams.n_layer, hparams.n_ff) == ("llama", 3, 3, 128)
    assert (hparams.n_head, hparams.n_head_kv, hparams.head_k, hparams.head_v) == (6, 6, 16, 16)
    assert (hparams.n_embd_q, hparams.n_embd_k, hparams.n_embd_v) == (96, 96, 96)
    assert hparams.attention_scale == 0.25
    rope = hparams.rope
    assert (rope.n_dims, rope.freq_base, rope.freq_scale, rope.n_ctx_orig) == (16, 10000.0, 1.0, 512)
    assert (rope.ext_factor, rope.attn_factor, rope.beta_fast, rope.beta_slow) == (0.0, 1.0, 32.0, 1.0)


def test_explicit_values_win() -> None:
    hparams = read(
        attention__head_count_kv=2, attention__key_length=32, attention__value_length=8, rope__dimension_count=24
    )
    assert (hparams.n_embd_q, hparams.n_embd_k, hparams.n_embd_v, hparams.rope.n_dims) == (192, 64, 16, 24)


def test_one_number_per_layer_must_be_one_number() -> None:
    assert read(attention__head_count_kv=[3, 3, 3]).n_head_kv == 3
    with pytest.raises(UnsupportedModelError, match=r"llama\.attention\.head_count_kv differs between layers"):
        read(attention__head_count_kv=[3, 3, 1])


@pytest.mark.parametrize("key", [key for key in BASE if key != "general.architecture"])
def test_a_missing_key_is_named(key: str) -> None:
    metadata = {name: value for name, value in BASE.items() if name != key}
    with pytest.raises(ModelFileError, match=f"{key} is missing"):
        read_hyperparameters(metadata, Traits(RopeMode.NORMAL))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", -1),
        ("block_count", 2.5),
        ("block_count", "three"),
        ("block_count", True),
        ("embedding_length", []),
        ("attention.layer_norm_rms_epsilon", 0.0),
        ("attention.layer_norm_rms_epsilon", math.nan),
        ("attention.layer_norm_rms_epsilon", math.inf),
        ("attention.layer_norm_rms_epsilon", "small"),
        ("rope.freq_base", -1.0),
        ("rope.dimension_count", 15),
        ("rope.dimension_count", 18),
        ("rope.scaling.factor", -2.0),
        ("attention.head_count_kv", 4),
    ],
)
def test_a_bad_value_is_named(key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=rf"llama\.{key}"):
        read(**{key.replace(".", "__"): value})


def test_the_vocabulary_counts() -> None:
    metadata = {key: value for key, value in BASE.items() if key != "tokenizer.ggml.tokens"}
    assert read_hyperparameters({**metadata, "llama.vocab_size": 7}, Traits(RopeMode.NORMAL)).n_vocab == 7
    assert read(vocab_size=7).n_vocab == 3
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens is \[\]"):
        read_hyperparameters({**metadata, "tokenizer.ggml.tokens": []}, Traits(RopeMode.NORMAL))


@pytest.mark.parametrize("value", [None, "", 5])
def test_the_architecture_must_be_named(value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"general\.architecture"):
        read_architecture({"general.architecture": value})


def test_linear_scaling() -> None:
    assert read(rope__scaling__factor=4.0).rope.freq_scale == 0.25
    assert read(rope__scale_linear=2.0).rope.freq_scale == 0.5
    assert read(rope__scaling__factor=0.0).rope.freq_scale == 1.0
    assert read(rope__scaling__factor=4.0, rope__scaling__type="none").rope.freq_scale == 1.0
    assert read(rope__scaling__factor=4.0, rope__scaling__attn_factor=1.5).rope.attn_factor == 1.5


def test_yarn_scaling() -> None:
    rope = read(rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=128).rope
    assert (rope.scaling, rope.freq_scale, rope.ext_factor, rope.n_ctx_orig) == (RopeScaling.YARN, 0.25, 1.0, 128)
    # llama.cpp: mscale(4) = 1 + 0.1 ln 4, divided by the operation's own 1 + 0.1 ln 4.
    assert rope.attn_factor == 1.0
    shrunk = read(rope__scaling__type="yarn", rope__scaling__factor=0.5).rope
    assert shrunk.attn_factor == pytest.approx(1 / (1 + 0.1 * math.log(0.5)))
    with pytest.raises(ModelFileError, match="too small for YaRN"):
        read(rope__scaling__type="yarn", rope__scaling__factor=1e-6)


@pytest.mark.parametrize("scaling", ["longrope", "something", 7])
def test_other_scalings_are_refused(scaling: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"rope\.scaling\.type is .*supported: none, linear, yarn"):
        read(rope__scaling__type=scaling)


def test_what_would_compute_something_else_is_refused() -> None:
    assert read(expert_count=0).n_layer == 3
    with pytest.raises(UnsupportedModelError, match=r"llama\.expert_count = 8: mixtures of experts"):
        read(expert_count=8)
    with pytest.raises(UnsupportedModelError, match=r"llama\.attention\.causal is false"):
        read(attention__causal=False)
