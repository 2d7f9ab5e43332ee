"""Weights: the tensors a model is made of, matched against those a file has.

Belongs here: which tensor has which name, shape and place, for the parts that architectures share, and
the check of a file against such a list. Must not be here: what is computed with them (`layers`).

Source: tensor names and shapes are those of llama.cpp's loader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import ModelFileError, UnsupportedModelError
from rpc_backend.gguf_file import GgufFile, GgufTensor
from rpc_backend.graph import ElementType
from rpc_backend.graph.element_types import F32, FLOATS, QUANTIZED
from rpc_backend.models.hyperparameters import Hyperparameters

Place = int | Literal["input", "output"]
"""The part of a model that uses a weight: a layer's index, or what lies before or behind all layers."""

_MATRIX_TYPES = FLOATS | QUANTIZED


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One tensor an architecture looks for. `ne` counts elements, innermost first.

    `stored_as` is the name in the file where that is another one: a weight that several parts share is
    listed once for each.
    """

    name: str
    ne: tuple[int, ...]
    place: Place
    is_required: bool = True
    stored_as: str = ""

    @property
    def file_name(self) -> str:
        return self.stored_as or self.name


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of a model: `data` are its bytes in the mapped file, flat."""

    name: str
    type: ElementType
    ne: tuple[int, ...]
    place: Place
    data: npt.NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


def frame_specs(hparams: Hyperparameters) -> Iterator[WeightSpec]:
    """What lies around the layers: the token embedding, the last norm, the output matrix."""
    matrix = (hparams.n_embd, hparams.n_vocab)
    yield WeightSpec("token_embd.weight", matrix, "input")
    yield WeightSpec("output_norm.weight", (hparams.n_embd,), "output")
    yield WeightSpec("output.weight", matrix, "output", is_required=False)
    yield WeightSpec("output.bias", (hparams.n_vocab,), "output", is_required=False)


def norm_spec(layer: int, part: str, n: int) -> WeightSpec:
    """The factors of a norm of a layer."""
    return WeightSpec(f"blk.{layer}.{part}.weight", (n,), layer)


def attention_specs(
    hparams: Hyperparameters,
    layer: int,
    *,
    needs_bias: bool = False,
    needs_output_bias: bool = False,
    has_norm: bool = True,
) -> Iterator[WeightSpec]:
    """The norm before attention and its four matrices; biases are optional unless needed."""
    parts = {"attn_q": hparams.n_embd_q, "attn_k": hparams.n_embd_k, "attn_v": hparams.n_embd_v}
    if has_norm:
        yield norm_spec(layer, "attn_norm", hparams.n_embd)
    for part, n_rows in parts.items():
        yield WeightSpec(f"blk.{layer}.{part}.weight", (hparams.n_embd, n_rows), layer)
        yield WeightSpec(f"blk.{layer}.{part}.bias", (n_rows,), layer, is_required=needs_bias)
    yield from output_specs(hparams, layer, needs_bias=needs_output_bias)


def output_specs(hparams: Hyperparameters, layer: int, *, needs_bias: bool = False) -> Iterator[WeightSpec]:
    """The matrix behind attention; its bias is optional unless needed."""
    width = hparams.head_v * hparams.n_head
    yield WeightSpec(f"blk.{layer}.attn_output.weight", (width, hparams.n_embd), layer)
    yield WeightSpec(f"blk.{layer}.attn_output.bias", (hparams.n_embd,), layer, is_required=needs_bias)


def mlp_specs(hparams: Hyperparameters, layer: int, *, has_norm: bool = True) -> Iterator[WeightSpec]:
    """The norm before the MLP and its three matrices, with optional biases."""
    if has_norm:
        yield norm_spec(layer, "ffn_norm", hparams.n_embd)
    yield from gated_specs(hparams, layer, hparams.n_ff)


def gated_specs(
    hparams: Hyperparameters, layer: int, n_ff: int, suffix: str = "", *, takes_bias: bool = True
) -> Iterator[WeightSpec]:
    """The three matrices of a gated MLP; `suffix` names another one of the layer, as `_shexp`."""
    n_embd = hparams.n_embd
    for part, ne in (("ffn_gate", (n_embd, n_ff)), ("ffn_up", (n_embd, n_ff)), ("ffn_down", (n_ff, n_embd))):
        yield WeightSpec(f"blk.{layer}.{part}{suffix}.weight", ne, layer)
        if takes_bias:
            yield WeightSpec(f"blk.{layer}.{part}{suffix}.bias", (ne[1],), layer, is_required=False)


def rope_factor_spec(hparams: Hyperparameters, layer: int, kind: str = "rope_freqs") -> WeightSpec:
    """The optional frequency factors of ROPE: one tensor in the file, used by every layer."""
    name = f"blk.{layer}.{kind}.weight"
    return WeightSpec(name, (hparams.rope.n_dims // 2,), layer, is_required=False, stored_as=f"{kind}.weight")


def collect_weights(file: GgufFile, specs: Iterable[WeightSpec]) -> list[Weight]:
    """Find every listed tensor in a file; without an output matrix the token embedding serves as one.

    Raises:
        ModelFileError: a tensor is missing or has another shape; the message has both shapes.
        UnsupportedModelError: an element type that does not fit the use, or a tensor that the architecture
            does not know: leaving it out would compute something else.
    """
    specs = list(specs)
    unknown = sorted(set(file.tensors) - {spec.file_name for spec in specs})
    found = [weight for spec in specs if (weight := _find(file, spec)) is not None]
    if unknown:
        names = ", ".join(unknown[:3]) + (", …" if len(unknown) > 3 else "")
        raise UnsupportedModelError(f"has {len(unknown)} tensors that this architecture does not use: {names}")
    return found if "output.weight" in file.tensors else [*found, _tied_output(found)]


def _tied_output(weights: list[Weight]) -> Weight:
    embedding = next(weight for weight in weights if weight.name == "token_embd.weight")
    return replace(embedding, name="output.weight", place="output")


def _find(file: GgufFile, spec: WeightSpec) -> Weight | None:
    tensor = file.tensors.get(spec.file_name)
    if tensor is None:
        if spec.is_required:
            raise ModelFileError(f"tensor {spec.file_name} is missing; it must have the shape {list(spec.ne)}")
        return None
    if _without_ones(tensor.ne) != _without_ones(spec.ne):
        raise ModelFileError(f"tensor {tensor.name} has the shape {list(tensor.ne)}, expected {list(spec.ne)}")
    _check_type(tensor, spec)
    return Weight(spec.name, tensor.type, spec.ne, spec.place, tensor.data)


def _without_ones(ne: tuple[int, ...]) -> tuple[int, ...]:
    while len(ne) > 1 and ne[-1] == 1:
        ne = ne[:-1]
    return ne


def _check_type(tensor: GgufTensor, spec: WeightSpec) -> None:
    if len(spec.ne) == 1 and tensor.type is not F32:
        raise UnsupportedModelError(f"tensor {tensor.name} is {tensor.type.name}; a norm, bias or factor must be F32")
    if tensor.type not in _MATRIX_TYPES:
        raise UnsupportedModelError(f"tensor {tensor.name} is {tensor.type.name}, which no matrix product takes")
