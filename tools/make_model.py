#!/usr/bin/env python3
"""Write a model of a given shape with random weights, for measurements: its text means nothing, its speed does.

    python tools/make_model.py 1b-q8_0.gguf --preset 1b --type Q8_0
    python tools/make_model.py 1b-q4_k_m.gguf --preset 1b --type Q4_K_M --llama-python llama/bin/python
    python tools/make_model.py wide.gguf --layers 2 --width 4096 --mlp 14336 --heads 32 --kv-heads 8 --type Q4_0

Belongs here: shapes, and files too large for memory. Must not be here: tiny models of tests (`rpc_backend.testing`).

The vocabulary is the demo model's where its package is there and the size agrees, else bytes and unused tokens.
Quantizing is done by the `gguf` package, or, with `--llama-python` (an interpreter that has `llama-cpp-python`), by
llama.cpp itself: it knows more types, and gives some matrices more bits as in files that people share. Equal arguments
give equal files.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

import llamacpp
from rpc_backend.errors import RpcBackendError
from rpc_backend.host.model_source import DEMO, find_model
from rpc_backend.models import ARCHITECTURES, GgufFile, WeightSpec
from rpc_backend.models.hyperparameters import ARCHITECTURE_KEY, read_hyperparameters
from rpc_backend.testing.gguf_writer import WRITABLE_TYPES, add_key, byte_vocabulary, random_values, shape_keys

ARCHITECTURE = "llama"
FLOAT_TYPES = ("F32", "F16", "BF16")
_CHUNK_ELEMENTS = 1 << 24
_QUANTIZE_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model of the Llama family looks like. `tied`: the output matrix is the token embedding."""

    layers: int = 16
    width: int = 2048
    mlp: int = 8192
    heads: int = 32
    kv_heads: int = 8
    vocabulary: int = 49152
    context: int = 8192
    tied: bool = True

    def __post_init__(self) -> None:
        for name in ("layers", "width", "mlp", "heads", "kv_heads", "vocabulary", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name.replace('_', '-')} {getattr(self, name)} is below 1")
        if self.width % (2 * self.heads) or self.heads % self.kv_heads:
            raise ValueError(
                f"width {self.width} is not {self.heads} heads of an even width each, "
                f"or heads are no multiple of {self.kv_heads} kv heads"
            )


PRESETS = {
    "1b": Shape(),
    "135m": Shape(layers=30, width=576, mlp=1536, heads=9, kv_heads=3),
    "tiny": Shape(layers=2, width=256, mlp=512, heads=4, kv_heads=2, vocabulary=512, context=512),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one file and say what is in it."""
    parser = _parser()
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        write_model(options.out, shape_of(options), options.type, options.seed, options.llama_python)
    except (ValueError, OSError, RpcBackendError, llamacpp.LlamaCppError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    size = options.out.stat().st_size
    print(f"{options.out}: {size / 2**20:.0f} MiB in {time.perf_counter() - started:.0f} s")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the file to write")
    parser.add_argument("--preset", choices=PRESETS, default="1b", help="shape (default: %(default)s)")
    for name in ("layers", "width", "mlp", "heads", "kv-heads", "vocabulary", "context"):
        parser.add_argument(f"--{name}", type=int, help="in place of the preset's")
    parser.add_argument("--tied", action=argparse.BooleanOptionalAction, help="whether the embedding is the output too")
    parser.add_argument("--type", default="Q8_0", help=f"{', '.join(WRITABLE_TYPES)}, or one of llama.cpp's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--llama-python", metavar="PATH", help="interpreter with llama-cpp-python: quantize there")
    return parser


def shape_of(options: argparse.Namespace) -> Shape:
    """Return the preset's shape with what the command line changes. Raises ValueError for one that cannot be."""
    given = {name: getattr(options, name) for name in Shape.__dataclass_fields__}
    return replace(PRESETS[options.preset], **{name: value for name, value in given.items() if value is not None})


def write_model(out: Path, shape: Shape, type_name: str, seed: int = 0, llama_python: str | None = None) -> None:
    """Write a model whose matrices have the type `type_name`; norms are F32.

    Raises:
        ValueError: a type that cannot be written, or rows that are not whole blocks of it.
        LlamaCppError: llama.cpp's quantizer failed.
    """
    if type_name in FLOAT_TYPES or (type_name in WRITABLE_TYPES and llama_python is None):
        _write(out, shape, gguf.GGMLQuantizationType[type_name], seed)
        return
    if llama_python is None:
        known = ", ".join(WRITABLE_TYPES)
        raise ValueError(f"type {type_name} needs --llama-python; without it: {known}")
    between = out.with_name(out.name + ".f16")
    try:
        _write(between, shape, gguf.GGMLQuantizationType.F16, seed)
        request = {"source": str(between), "target": str(out), "type": type_name}
        llamacpp.call(llama_python, "quantize", request, _QUANTIZE_LIMIT_S)
    finally:
        between.unlink(missing_ok=True)


def _write(out: Path, shape: Shape, kind: gguf.GGMLQuantizationType, seed: int) -> None:
    metadata = _metadata(shape)
    hparams = read_hyperparameters(metadata, ARCHITECTURES[ARCHITECTURE].traits)
    every = ARCHITECTURES[ARCHITECTURE]().weight_specs(hparams)
    wanted = {
        spec.name: spec for spec in every if spec.is_required or (spec.name == "output.weight" and not shape.tied)
    }
    writer = gguf.GGUFWriter(out, ARCHITECTURE)
    for key, value in metadata.items():
        if key != ARCHITECTURE_KEY:  # the writer adds it by itself
            add_key(writer, key, value)
    for spec in wanted.values():
        _announce(writer, spec, _kind_of(spec, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, spec in enumerate(wanted.values()):
        writer.write_tensor_data(_tensor_bytes(spec, _kind_of(spec, kind), np.random.default_rng((seed, number))))
    writer.close()


def _metadata(shape: Shape) -> dict[str, Any]:
    head = shape.width // shape.heads
    sizes = (shape.layers, shape.width, shape.mlp, shape.heads, shape.kv_heads, head, shape.context)
    return shape_keys(ARCHITECTURE, *sizes) | _vocabulary(shape.vocabulary)


def _vocabulary(n_tokens: int) -> dict[str, Any]:
    least = byte_vocabulary()
    if n_tokens < len(least["tokenizer.ggml.tokens"]):
        raise ValueError(f"a vocabulary of {n_tokens} tokens is below that of bytes")
    try:
        demo = GgufFile.open(find_model(DEMO)).metadata
    except RpcBackendError:
        return byte_vocabulary(n_tokens)
    if len(demo["tokenizer.ggml.tokens"]) != n_tokens:
        return byte_vocabulary(n_tokens)
    return {key: value for key, value in demo.items() if key.startswith("tokenizer.")}


def _kind_of(spec: WeightSpec, kind: gguf.GGMLQuantizationType) -> gguf.GGMLQuantizationType:
    return kind if len(spec.ne) > 1 else gguf.GGMLQuantizationType.F32


def _announce(writer: gguf.GGUFWriter, spec: WeightSpec, kind: gguf.GGMLQuantizationType) -> None:
    shape = gguf.quants.quant_shape_to_byte_shape(tuple(reversed(spec.ne)), kind)
    writer.add_tensor_info(spec.name, shape, np.dtype(np.uint8), int(np.prod(shape)), raw_dtype=kind)


def _tensor_bytes(
    spec: WeightSpec, kind: gguf.GGMLQuantizationType, random: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Return a tensor as it lies in the file; only a few rows at a time are there as float32."""
    chunks = [gguf.quants.quantize(values, kind).view(np.uint8).ravel() for values in _row_chunks(spec, random)]
    return np.concatenate(chunks)


def _row_chunks(spec: WeightSpec, random: np.random.Generator) -> Iterator[npt.NDArray[np.float32]]:
    if len(spec.ne) == 1:
        yield random_values(spec, random)
        return
    width, n_rows = spec.ne
    step = max(1, _CHUNK_ELEMENTS // width)
    for first in range(0, n_rows, step):
        yield random_values(replace(spec, ne=(width, min(step, n_rows - first))), random)


if __name__ == "__main__":
    sys.exit(main())
