"""granite: the dense Granite 3 models."""

from __future__ import annotations

from typing import ClassVar

from rpc_backend.graph import RopeMode
from rpc_backend.models.architectures.llama import Llama
from rpc_backend.models.hyperparameters import Traits


class Granite(Llama):
    """llama with factors on embeddings, scores, what a layer adds, and logits."""

    traits: ClassVar[Traits] = Traits(RopeMode.NORMAL, has_scales=True)
