"""The shape of a step and the input tensors that follow from it.

Belongs here: counts and leaves. Must not be here: what is computed from them (`layers`, `step`).
"""

from __future__ import annotations

from dataclasses import dataclass

from rpc_backend.errors import GraphError
from rpc_backend.graph import Tensor, build
from rpc_backend.graph.element_types import F16, F32, I32, I64
from rpc_backend.models.cache import LayerCache
from rpc_backend.models.hyperparameters import Hyperparameters


@dataclass(frozen=True, slots=True)
class StepShape:
    """All that decides a step's graph: equal shapes, equal graphs.

    `n_seqs` sequences, the cache's from `first_seq` on, each with `n_tokens` new tokens, each looking at its
    first `n_kv` cells; `n_outputs` of all the tokens give logits. Without `flash_attn`, attention is built
    from products and SOFT_MAX. A step with `gives_next` gives the tokens it drew to the step after it, and one with
    `takes_next` takes them from the step before it: one token of each sequence.
    """

    first_seq: int
    n_seqs: int
    n_tokens: int
    n_kv: int
    n_outputs: int
    flash_attn: bool = True
    gives_next: bool = False
    takes_next: bool = False

    @property
    def n_total(self) -> int:
        """New tokens of all sequences together."""
        return self.n_seqs * self.n_tokens

    def check(self, cache: LayerCache) -> None:
        """Raise GraphError unless the step fits the cache."""
        if self.n_seqs < 1 or self.n_tokens < 1 or not 0 <= self.n_outputs <= self.n_total:
            raise GraphError(f"{self} has no tokens, or more outputs than tokens")
        if (self.takes_next and self.n_tokens > 1) or (self.gives_next and self.n_outputs != self.n_seqs):
            raise GraphError(f"{self} has not one token of each sequence to hand over")
        if self.first_seq < 0 or self.first_seq + self.n_seqs > cache.n_seq:
            raise GraphError(f"{self} needs sequences that a cache of {cache.n_seq} does not have")
        if not 1 <= self.n_kv <= cache.n_ctx_seq:
            raise GraphError(f"{self} looks at {self.n_kv} cells of a cache of {cache.n_ctx_seq}")


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The leaves that change from step to step; tokens are ordered sequence by sequence.

    Shapes: tokens, positions I32 [n_total]; embd F32 [n_embd, n_total], the tokens looked up before; kv_rows I64
    [n_total], rows of the flat cache [embd, n_ctx_seq * n_seq]; mask F16 [n_kv, n_tokens, 1, n_seqs], 0 or minus
    infinity, and window_mask, the same of layers with a window; output_rows I32 [n_outputs], which tokens give logits.

    For layers with a state: is_token F32 [n_total], 0 for padding; has_past F32 [n_seqs], 0 for a sequence without
    tokens before; conv_rows I32 [conv_width - 1, n_seqs], which inputs of the convolution to keep.
    """

    tokens: Tensor
    embd: Tensor
    positions: Tensor
    kv_rows: Tensor
    mask: Tensor
    window_mask: Tensor
    output_rows: Tensor
    is_token: Tensor
    has_past: Tensor
    conv_rows: Tensor

    @classmethod
    def of_shape(cls, shape: StepShape, hparams: Hyperparameters) -> StepInputs:
        """Make the leaves of a shape, not placed."""
        n_kept = hparams.linear.conv_width - 1 if hparams.linear else 0
        mask_ne = (shape.n_kv, shape.n_tokens, 1, shape.n_seqs)
        return cls(
            tokens=build.leaf(I32, (shape.n_total,), "tokens"),
            embd=build.leaf(F32, (hparams.n_embd, shape.n_total), "embd"),
            positions=build.leaf(I32, (shape.n_total,), "positions"),
            kv_rows=build.leaf(I64, (shape.n_total,), "kv_rows"),
            mask=build.leaf(F16, mask_ne, "mask"),
            window_mask=build.leaf(F16, mask_ne, "window_mask"),
            output_rows=build.leaf(I32, (shape.n_outputs,), "output_rows"),
            is_token=build.leaf(F32, (shape.n_total,), "is_token"),
            has_past=build.leaf(F32, (shape.n_seqs,), "has_past"),
            conv_rows=build.leaf(I32, (n_kept, shape.n_seqs), "conv_rows"),
        )
