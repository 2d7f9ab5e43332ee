"""Loading a model: which weights, where they belong, and what is wrong with those that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpc_backend.errors import ModelFileError, UnsupportedModelError
from rpc_backend.models import ARCHITECTURES, GgufFile, Model, load_model
from rpc_backend.testing.gguf_writer import write_tiny_model

FRAME = {"token_embd.weight": "input", "output_norm.weight": "output", "output.weight": "output"}
LAYER = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
EXTRA = {
    "llama": [],
    "qwen2": ["attn_q.bias", "attn_k.bias", "attn_v.bias"],
    "qwen3": ["attn_q_norm.weight", "attn_k_norm.weight"],
}


def load(tmp_path: Path, *arguments: Any, **options: Any) -> Model:
    return load_model(GgufFile.open(write_tiny_model(tmp_path / "model.gguf", *arguments, **options)))


@pytest.mark.parametrize("architecture", list(EXTRA))
def test_weights_and_their_places(tmp_path: Path, architecture: str) -> None:
    model = load(tmp_path, architecture)
    expected: dict[str, Any] = dict(FRAME)
    for layer in range(2):
        expected |= {f"blk.{layer}.{part}.weight": layer for part in LAYER}
        expected |= {f"blk.{layer}.{name}": layer for name in EXTRA[architecture]}
    assert {weight.name: weight.place for weight in model.weights} == expected
    assert len({weight.name for weight in model.weights}) == len(model.weights)


_TELLING = {
    "qwen2": ("blk.0.attn_q.weight", (64, 64)),
    "qwen2moe": ("blk.1.ffn_gate_inp_shexp.weight", (64, 1)),
    "qwen3moe": ("blk.1.ffn_down_exps.weight", (64, 64, 8)),
    "gemma": ("blk.0.ffn_norm.weight", (64,)),
    "gemma2": ("blk.0.post_ffw_norm.weight", (64,)),
    "gemma3": ("blk.0.attn_k_norm.weight", (32,)),
    "phi3": ("blk.1.attn_qkv.weight", (64, 128)),
    "olmo2": ("blk.1.attn_k_norm.weight", (32,)),
    "granite": ("blk.1.ffn_gate.weight", (64, 96)),
    "gpt-oss": ("blk.1.ffn_up_exps.bias", (64, 4)),
    "qwen35": ("blk.0.ssm_conv1d.weight", (4, 128)),
}


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_every_architecture_can_be_written_and_loaded(tmp_path: Path, architecture: str) -> None:
    weights = {weight.name: weight for weight in load(tmp_path, architecture, optional=True).weights}
    name, ne = _TELLING.get(architecture, ("blk.0.attn_q.weight", (64, 128)))
    assert weights[name].ne == ne
    assert weights["output.weight"].place == "output"


def test_a_mixture_of_llama_is_taken(tmp_path: Path) -> None:
    model = load(tmp_path, metadata=None)
    assert model.hparams.experts is None
    experts = {"llama.expert_count": 4, "llama.expert_used_count": 2}
    with pytest.raises(ModelFileError, match=r"blk\.0\.ffn_gate_inp\.weight is missing"):
        load(tmp_path, metadata=experts)


def test_optional_weights_are_taken_where_they_are(tmp_path: Path) -> None:
    names = {weight.name for weight in load(tmp_path, optional=True).weights}
    assert {"blk.1.attn_output.bias", "blk.0.ffn_down.bias", "blk.0.attn_v.bias", "output.bias"} <= names


def test_every_layer_has_its_own_frequency_factors(tmp_path: Path) -> None:
    factors = [item for item in load(tmp_path, optional=True).weights if "rope_freqs" in item.name]
    assert [(item.name, item.place) for item in factors] == [
        ("blk.0.rope_freqs.weight", 0),
        ("blk.1.rope_freqs.weight", 1),
    ]
    assert np.shares_memory(factors[0].data, factors[1].data)


def test_a_tied_output_is_the_embedding_listed_again(tmp_path: Path) -> None:
    weights = {weight.name: weight for weight in load(tmp_path, "qwen3", "Q8_0", tied=True).weights}
    embedding, output = weights["token_embd.weight"], weights["output.weight"]
    assert (embedding.place, output.place, output.type.name) == ("input", "output", "Q8_0")
    assert np.shares_memory(embedding.data, output.data)
    assert output.ne == (64, 261)


@pytest.mark.parametrize("type", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_matrices_keep_their_type_and_norms_are_f32(tmp_path: Path, type: str) -> None:
    weights = {weight.name: weight for weight in load(tmp_path, type=type).weights}
    matrix, norm = weights["blk.0.ffn_down.weight"], weights["blk.0.ffn_norm.weight"]
    assert (matrix.type.name, matrix.nbytes) == (type, 64 * matrix.type.row_nbytes(96))
    assert (norm.type.name, norm.nbytes) == ("F32", 256)


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"model\.gguf: the architecture 'mamba' .*: llama, qwen2, qwen3"):
        load(tmp_path, metadata={"general.architecture": "mamba"})
    with pytest.raises(ModelFileError, match=r"model\.gguf: .*general\.architecture is missing"):
        load(tmp_path, metadata={"general.architecture": None})


def test_a_missing_key_is_named_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"model\.gguf: metadata key llama\.block_count is missing"):
        load(tmp_path, metadata={"llama.block_count": None})


@pytest.mark.parametrize(
    "name", ["token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight", "blk.0.ffn_norm.weight"]
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match=rf"tensor {name} is missing; it must have the shape \["):
        load(tmp_path, tensors={name: None})


def test_needed_biases_and_norms_are_missed(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.bias is missing"):
        load(tmp_path, "qwen2", tensors={"blk.0.attn_q.bias": None})
    with pytest.raises(ModelFileError, match=r"blk\.1\.attn_k_norm\.weight is missing"):
        load(tmp_path, "qwen3", tensors={"blk.1.attn_k_norm.weight": None})


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"blk\.0\.ffn_up\.weight has the shape \[64, 32\], expected \[64, 96\]"):
        load(tmp_path, tensors={"blk.0.ffn_up.weight": np.zeros((32, 64), np.float32)})
    with pytest.raises(ModelFileError, match=r"token_embd\.weight has the shape \[64, 261\], expected \[64, 3\]"):
        load(tmp_path, metadata={"tokenizer.ggml.tokens": ["a", "b", "c"]})


def test_a_tensor_nobody_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"1 tensors that this architecture does not use: blk\.0\.attn_sinks"
    ):
        load(tmp_path, tensors={"blk.0.attn_sinks": np.zeros(4, np.float32)})


def test_a_type_that_does_not_fit_the_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"output_norm\.weight is F16; a norm"):
        load(tmp_path, tensors={"output_norm.weight": np.ones(64, np.float16)})
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_q\.weight is I32, which no matrix product takes"):
        load(tmp_path, tensors={"blk.0.attn_q.weight": np.ones((128, 64), np.int32)})
