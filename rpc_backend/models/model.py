"""A loaded model: its shape, its architecture, and its weights as bytes of the mapped file.

Belongs here: the way from a file to a Model. Must not be here: devices or graphs.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpc_backend.errors import ModelError, UnsupportedModelError
from rpc_backend.gguf_file import GgufFile
from rpc_backend.models.architectures import ARCHITECTURES, Architecture
from rpc_backend.models.hyperparameters import Hyperparameters, read_architecture, read_hyperparameters
from rpc_backend.models.weights import Weight, collect_weights


@dataclass(frozen=True, slots=True)
class Model:
    """What a host needs to place and run a model. Weight names are unique."""

    hparams: Hyperparameters
    architecture: Architecture
    weights: tuple[Weight, ...]

    @property
    def is_tied(self) -> bool:
        """Whether the output matrix is the token embedding."""
        named = {weight.name: weight for weight in self.weights}
        output, embedding = named["output.weight"], named["token_embd.weight"]
        return output.data is embedding.data


def load_model(file: GgufFile) -> Model:
    """Match a file against its architecture; no tensor byte is read.

    Raises:
        ModelFileError: a metadata key or tensor is missing or does not fit; the message names file and thing.
        UnsupportedModelError: the architecture, or something it uses, is not known here.
    """
    try:
        architecture = _find_architecture(read_architecture(file.metadata))
        hparams = read_hyperparameters(file.metadata, architecture.traits)
        return Model(hparams, architecture, tuple(collect_weights(file, architecture.weight_specs(hparams))))
    except ModelError as error:
        raise type(error)(f"{file.path}: {error.message}") from error


def _find_architecture(name: str) -> Architecture:
    found = ARCHITECTURES.get(name)
    if found is None:
        raise UnsupportedModelError(f"the architecture {name!r} is not known here; known: {', '.join(ARCHITECTURES)}")
    return found()
