"""Sequences in a model's cache, and the steps that extend them.

Belongs here: which shape of step graph fits the tokens at hand, and how long each sequence is. Must not be
here: sampling, text, or placing weights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import ContextFullError
from rpc_backend.graph import Tensor
from rpc_backend.models import LayerCache, Model, Step, StepArrays, StepShape, build_step, padded_n_kv, step_arrays
from rpc_backend.scheduler import Execution, Scheduler

Floats = npt.NDArray[np.float32]

_TOKEN_STEP = 32
_CELL_STEP = 32
_MAX_GRAPHS = 48
MAX_OUTPUTS = 64
"""Most tokens of one step whose logits are asked for: bounds the scratch that logits take."""


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """Sizes of a context: tokens per sequence, sequences, and tokens of one prefill step."""

    n_ctx: int
    n_seq: int
    ubatch: int
    flash_attn: bool = True

    @property
    def n_cells(self) -> int:
        """Cache cells per sequence: at least one more than tokens, for what a step writes beside them."""
        return (self.n_ctx // _CELL_STEP + 1) * _CELL_STEP

    def largest_shapes(self) -> list[StepShape]:
        """Return the step shapes that need the most scratch memory."""
        chunk = min(self.ubatch, self.n_ctx)
        outputs = min(chunk, MAX_OUTPUTS)
        prefill = StepShape(0, 1, chunk, self.n_cells, outputs, self.flash_attn)
        return [prefill, StepShape(0, self.n_seq, 1, self.n_cells, self.n_seq, self.flash_attn)]


class Context:
    """The state of `n_seq` sequences of up to `n_ctx` tokens each. Not for several threads at once."""

    def __init__(
        self,
        model: Model,
        scheduler: Scheduler,
        weights: Mapping[str, Tensor],
        cache: Sequence[LayerCache],
        placement: Mapping[Tensor, int],
        limits: ContextLimits,
    ) -> None:
        self._model = model
        self._scheduler = scheduler
        self._weights = weights
        self._cache = cache
        self._placement = placement
        self._limits = limits
        self._lengths = [0] * limits.n_seq
        self._graphs: OrderedDict[StepShape, tuple[Step, Execution]] = OrderedDict()

    @property
    def n_seq(self) -> int:
        return self._limits.n_seq

    def clear(self, sequence: int) -> None:
        """Forget a sequence's tokens."""
        self._lengths[sequence] = 0

    def room(self, sequence: int) -> int:
        """Return how many more tokens a sequence holds."""
        return self._limits.n_ctx - self._lengths[sequence]

    def prefill(self, sequence: int, tokens: Sequence[int]) -> Floats:
        """Append tokens to a sequence and return the logits after the last.

        Shapes: result float32 [n_vocab].
        Raises:
            ContextFullError: the tokens do not fit; the sequence is unchanged.
        """
        self._need_room(sequence, len(tokens))
        *chunks, last = _chunks(tokens, self._limits.ubatch)
        for chunk in chunks:
            self._append(sequence, chunk, 0)
        return self._append(sequence, last, 1)[0]

    def logits(self, sequence: int, tokens: Sequence[int]) -> Floats:
        """Append tokens to a sequence and return the logits after each.

        Shapes: result float32 [n_tokens, n_vocab]. Raises as `prefill`.
        """
        self._need_room(sequence, len(tokens))
        chunks = _chunks(tokens, min(self._limits.ubatch, MAX_OUTPUTS))
        return np.concatenate([self._append(sequence, chunk, len(chunk)) for chunk in chunks])

    def decode(self, tokens: Mapping[int, int]) -> dict[int, Floats]:
        """Append one token to each of some sequences and return the logits after each.

        All advance in one step; a sequence between them that is not named stays as it is.

        Shapes: result sequence → float32 [n_vocab]. Raises as `prefill`.
        """
        for sequence in tokens:
            self._need_room(sequence, 1)
        first, last = min(tokens), max(tokens)
        span = range(first, last + 1)
        lengths = [self._lengths[sequence] for sequence in span]
        used = max(self._lengths[sequence] for sequence in tokens) + 1
        shape = self._shape(first, len(span), 1, used, len(span))
        new = [[tokens[sequence]] if sequence in tokens else [] for sequence in span]
        rows = self._run(shape, step_arrays(shape, new, lengths, self._limits.n_cells))
        for sequence in tokens:
            self._lengths[sequence] += 1
        return {sequence: rows[sequence - first] for sequence in tokens}

    def warm_up(self) -> None:
        """Run one padding token, so that the devices compile what a step needs before anyone waits for it."""
        shape = self._shape(0, 1, 1, 1, 1)
        self._run(shape, step_arrays(shape, [[]], [self._lengths[0]], self._limits.n_cells))

    def _append(self, sequence: int, tokens: Sequence[int], n_outputs: int) -> Floats:
        """Append tokens in one step and return the logits after the last `n_outputs` of them."""
        start = self._lengths[sequence]
        n_tokens = min(_bucket(len(tokens)), self._limits.ubatch)
        rows = list(range(len(tokens) - n_outputs, len(tokens)))
        if n_outputs:
            rows += rows[-1:] * (min(_bucket(n_outputs), n_tokens) - n_outputs)
        shape = self._shape(sequence, 1, n_tokens, start + len(tokens), len(rows))
        logits = self._run(shape, step_arrays(shape, [tokens], [start], self._limits.n_cells, rows))
        self._lengths[sequence] = start + len(tokens)
        return logits[:n_outputs]

    def _shape(self, first: int, n_seqs: int, n_tokens: int, used: int, n_outputs: int) -> StepShape:
        n_kv = padded_n_kv(used, self._limits.n_cells)
        return StepShape(first, n_seqs, n_tokens, n_kv, n_outputs, self._limits.flash_attn)

    def _run(self, shape: StepShape, arrays: StepArrays) -> Floats:
        step, execution = self._execution(shape)
        for name, tensor in step.used_inputs().items():
            execution.set_input(tensor, getattr(arrays, name))
        execution.run()
        logits = np.empty((shape.n_outputs, self._model.hparams.n_vocab), np.float32)
        if step.logits is not None:
            execution.get_output(step.logits, logits)
        return logits

    def _execution(self, shape: StepShape) -> tuple[Step, Execution]:
        found = self._graphs.get(shape)
        if found is None:
            step = build_step(self._model, self._weights, self._cache, shape)
            found = step, self._scheduler.prepare(step.graph, self._placement, step.outputs)
            self._graphs[shape] = found
            while len(self._graphs) > _MAX_GRAPHS:
                _, (_, oldest) = self._graphs.popitem(last=False)
                oldest.close()
        self._graphs.move_to_end(shape)
        return found

    def _need_room(self, sequence: int, n_tokens: int) -> None:
        if n_tokens > self.room(sequence):
            raise ContextFullError(
                f"{n_tokens} more tokens do not fit in a context of {self._limits.n_ctx} that holds "
                f"{self._lengths[sequence]}; shorten the prompt or raise the context size"
            )


def _chunks(tokens: Sequence[int], width: int) -> list[Sequence[int]]:
    return [tokens[start : start + width] for start in range(0, len(tokens), width)]


def _bucket(n_tokens: int) -> int:
    """Round a count of tokens up, so that few graph shapes serve all prompts."""
    if n_tokens <= _TOKEN_STEP:
        return 1 << (n_tokens - 1).bit_length()
    return -(-n_tokens // _TOKEN_STEP) * _TOKEN_STEP
