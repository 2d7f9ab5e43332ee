"""Tiny models: GGUF files with random weights, small enough to write anew in every test.

Belongs here: making files, well-formed ones and ones with a chosen flaw. Must not be here: reading them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from rpc_backend.errors import ConfigError
from rpc_backend.models import ARCHITECTURES, WeightSpec
from rpc_backend.models.hyperparameters import ARCHITECTURE_KEY, Hyperparameters, read_hyperparameters
from rpc_backend.testing.tiny_shapes import tiny_shape

WRITABLE_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")
SPECIAL_TOKENS = ("<s>", "</s>", "<unk>", "<pad>")
_NORMAL, _UNKNOWN, _CONTROL, _UNUSED = 1, 2, 3, 5
_MERGED = "ab"

Array = npt.NDArray[np.float32]


def write_tiny_model(
    path: str | Path,
    architecture: str = "llama",
    type: str = "F32",
    *,
    n_layer: int = 2,
    n_embd: int = 64,
    n_ff: int = 96,
    n_head: int = 4,
    n_head_kv: int = 2,
    head: int = 32,
    n_ctx: int = 512,
    tied: bool = False,
    optional: bool = False,
    seed: int = 0,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array | None] | None = None,
) -> Path:
    """Write a model with random weights and a vocabulary of 261 tokens: bytes, specials, one merge.

    `type` is that of the matrices; row lengths must be whole blocks of it. `tied` leaves out the output
    matrix, `optional` adds what the architecture may have (biases, frequency factors). `metadata` and
    `tensors` replace keys and tensors, None removes one. Equal arguments give equal files.

    Raises:
        ConfigError: an architecture or element type that cannot be written.
    """
    if architecture not in ARCHITECTURES or type not in WRITABLE_TYPES:
        raise ConfigError(
            f"cannot write {architecture} in {type}; architectures: {', '.join(ARCHITECTURES)}, "
            f"types: {', '.join(WRITABLE_TYPES)}"
        )
    shape = tiny_shape(architecture)
    head = n_embd // n_head if shape.heads_fill_width else head
    keys = shape_keys(architecture, n_layer, n_embd, n_ff, n_head, n_head_kv, head, n_ctx) | byte_vocabulary()
    keys |= {f"{architecture}.{key}": value for key, value in shape.keys.items()}
    hparams = read_hyperparameters(keys, ARCHITECTURES[architecture].traits)
    tied = tied or shape.is_tied
    values = _random_tensors(hparams, np.random.default_rng(seed), tied=tied, optional=optional)
    _write(Path(path), _changed(keys, metadata), _changed(values, tensors), type)
    return Path(path)


def byte_characters() -> list[str]:
    """Return the character that stands for each byte in a byte-level vocabulary.

    Source: GPT-2's encoder: printable Latin-1 stands for itself, the rest follows from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(value) if value in printable else chr(next(others)) for value in range(256)]


def shape_keys(
    architecture: str, n_layer: int, n_embd: int, n_ff: int, n_head: int, n_head_kv: int, head: int, n_ctx: int
) -> dict[str, Any]:
    """Return the metadata that says which architecture a model has, and its shape without the vocabulary."""
    shape = {
        "block_count": n_layer,
        "context_length": n_ctx,
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_head_kv,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": head,
        "rope.freq_base": 10000.0,
    }
    return {
        ARCHITECTURE_KEY: architecture,
        **{f"{architecture}.{key}": value for key, value in shape.items()},
    }


def byte_vocabulary(n_tokens: int = 0) -> dict[str, Any]:
    """Return the metadata of a vocabulary of bytes, specials and one merge, with unused tokens up to `n_tokens`."""
    tokens = [*byte_characters(), *SPECIAL_TOKENS, _MERGED]
    unused = [f"<unused{number}>" for number in range(len(tokens), n_tokens)]
    kinds = {"<unk>": _UNKNOWN} | dict.fromkeys(("<s>", "</s>", "<pad>"), _CONTROL) | dict.fromkeys(unused, _UNUSED)
    tokens += unused
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [kinds.get(token, _NORMAL) for token in tokens],
        "merges": [" ".join(_MERGED)],
        "bos_token_id": tokens.index("<s>"),
        "eos_token_id": tokens.index("</s>"),
        "add_bos_token": False,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def _random_tensors(
    hparams: Hyperparameters, random: np.random.Generator, *, tied: bool, optional: bool
) -> dict[str, Array]:
    values: dict[str, Array] = {}
    for spec in ARCHITECTURES[hparams.architecture]().weight_specs(hparams):
        wanted = not tied if spec.name == "output.weight" else spec.is_required or optional
        if wanted and spec.file_name not in values:
            values[spec.file_name] = random_values(spec, random)
    return values


def random_values(spec: WeightSpec, random: np.random.Generator) -> Array:
    """Return a weight's values: norms and factors around 1, biases around 0, matrices that keep a product's size.

    Decays are negative.
    """
    noise = random.standard_normal(tuple(reversed(spec.ne)), np.float32)
    is_bias = spec.name.endswith(".bias")
    if len(spec.ne) > 1 and not is_bias:
        return noise * np.float32(spec.ne[0] ** -0.5)
    if spec.name.endswith(".ssm_a"):
        return -np.abs(noise)  # a state forgets, it does not grow
    return noise * np.float32(0.1) + np.float32(not is_bias)


def _changed(values: Mapping[str, Any], changes: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in {**values, **(changes or {})}.items() if value is not None}


def _write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Array], type: str) -> None:
    writer = gguf.GGUFWriter(path, str(metadata.get(ARCHITECTURE_KEY, "")))
    writer.kv_data[0].pop(ARCHITECTURE_KEY, None)  # the writer adds it by itself; here it may be left out
    for key, value in metadata.items():
        add_key(writer, key, value)
    for name, values in tensors.items():
        _add_tensor(writer, name, values, "F32" if values.ndim == 1 or _stays_plain(name) else type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _stays_plain(name: str) -> bool:
    """Biases and short kernels are not stored as matrices are."""
    return name.endswith((".bias", ".ssm_conv1d.weight", ".ffn_gate_inp_shexp.weight"))


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a key of the type that fits a plain value."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        (writer.add_uint32 if value >= 0 else writer.add_int32)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: npt.NDArray[Any], type: str) -> None:
    if values.dtype != np.float32:
        writer.add_tensor(name, values)
        return
    kind = gguf.GGMLQuantizationType[type]
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
