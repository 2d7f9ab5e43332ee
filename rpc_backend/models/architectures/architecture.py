"""What every architecture answers, and the course that decoders share.

Belongs here: the interface, and what is the same in all architectures known so far. Must not be here:
anything that one of them does its own way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from rpc_backend.graph import Tensor
from rpc_backend.models.hyperparameters import Hyperparameters, Traits
from rpc_backend.models.layers import LayerBuilder
from rpc_backend.models.weights import WeightSpec, frame_specs


class Architecture(ABC):
    """A decoder with norms before attention and before the MLP. Subclasses say what a layer has and does."""

    traits: ClassVar[Traits]
    mlp_norm: ClassVar[str] = "ffn_norm"
    """The norm before the MLP."""

    @abstractmethod
    def layer_specs(self, hparams: Hyperparameters, layer: int) -> Iterator[WeightSpec]:
        """List the weights of one layer."""

    @abstractmethod
    def attention(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        """Return what attention adds to normed activations `x`: [n_embd, n_total]."""

    def mlp(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        """Return what the MLP adds to normed activations `x`: [n_embd, n_outputs] in the last layer."""
        return parts.gated_mlp(x, layer)

    def embedding_factor(self, hparams: Hyperparameters) -> float:
        """The factor on looked up embeddings."""
        return hparams.scales.embedding

    def layer(self, parts: LayerBuilder, x: Tensor, layer: int) -> Tensor:
        """Take activations through one layer."""
        attended = self.attention(parts, parts.norm(x, f"blk.{layer}.attn_norm", f"attn_norm-{layer}"), layer)
        attended, x = parts.keep_outputs(attended, layer), parts.keep_outputs(x, layer)
        factor = parts.hparams.scales.residual
        x = parts.add(parts.scaled(attended, factor, f"attn_scaled-{layer}"), x, f"ffn_inp-{layer}")
        mixed = self.mlp(parts, parts.norm(x, f"blk.{layer}.{self.mlp_norm}", f"ffn_norm-{layer}"), layer)
        return parts.add(parts.scaled(mixed, factor, f"ffn_scaled-{layer}"), x, f"l_out-{layer}")

    def build(self, parts: LayerBuilder) -> Tensor:
        """Take the step's tokens through the model: logits [n_vocab, n_outputs]."""
        hparams = parts.hparams
        x = parts.embed(self.embedding_factor(hparams))
        for layer in range(hparams.n_layer):
            x = self.layer(parts, x, layer)
        logits = parts.linear(parts.norm(x, "output_norm", "result_norm"), "output", "result_output")
        logits = parts.scaled(logits, hparams.scales.logits, "result_scaled")
        return parts.capped(logits, hparams.final_softcap, "result_capped")

    def weight_specs(self, hparams: Hyperparameters) -> Iterator[WeightSpec]:
        """List every weight of a model."""
        yield from frame_specs(hparams)
        for layer in range(hparams.n_layer):
            yield from self.layer_specs(hparams, layer)
