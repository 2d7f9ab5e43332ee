"""Sequences in a model's cache, and the steps that extend them.

Belongs here: which shape of step graph fits the tokens at hand, and how long each sequence is. Must not be
here: who goes first (`engine`), text, or placing weights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import ContextFullError
from rpc_backend.graph import Tensor
from rpc_backend.host.chunks import chunk_width, chunked
from rpc_backend.host.device_sampling import DeviceSampling
from rpc_backend.host.sampling import FloatArray, check_best
from rpc_backend.models import (
    MAX_K,
    LayerCache,
    Model,
    SamplingShape,
    Step,
    StepArrays,
    StepShape,
    build_step,
    padded_n_kv,
    step_arrays,
)
from rpc_backend.scheduler import Execution, Given, Handover, Run, Scheduler

Ids = npt.NDArray[np.int32]
_DecodeKey = tuple[StepShape, tuple[tuple[int, bool], ...]]
"""All that decides a decode step but its tokens: the shape, and of each row its sequence's length, and whether it is
named."""

_TOKEN_STEP = 32
_CELL_STEP = 32
_MAX_GRAPHS = 128
_SAMPLING = "sampling"
MAX_OUTPUTS = 64
"""Most tokens of one prefill step whose logits are asked for: bounds the scratch that logits take."""


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """Sizes of a context: tokens per sequence, sequences, and tokens of one prefill step.

    With `run_ahead` a decode step may start before the tokens that it takes are drawn.
    """

    n_ctx: int
    n_seq: int
    ubatch: int
    flash_attn: bool = True
    device_sampling: bool = False
    run_ahead: bool = False

    @property
    def n_cells(self) -> int:
        """Cache cells per sequence: at least one more than tokens, for what a step writes beside them."""
        return (self.n_ctx // _CELL_STEP + 1) * _CELL_STEP

    def largest_steps(self, n_vocab: int) -> list[tuple[StepShape, SamplingShape | None]]:
        """Return the shapes of the steps that need the most scratch memory."""
        chunk = min(self.ubatch, self.n_ctx)
        outputs = min(chunk, MAX_OUTPUTS)
        prefill = StepShape(0, 1, chunk, self.n_cells, outputs, self.flash_attn)
        decode = StepShape(0, self.n_seq, 1, self.n_cells, self.n_seq, self.flash_attn)
        sampling = SamplingShape(self.n_seq, min(MAX_K, n_vocab)) if self.device_sampling else None
        if sampling is None or not self.run_ahead:
            return [(prefill, None), (decode, sampling)]
        following = replace(decode, gives_next=True, takes_next=True)
        if self.n_seq <= chunk:  # what looks tokens up for the first decode step has room from the prefill
            return [(prefill, None), (following, sampling)]
        return [(prefill, None), (replace(decode, gives_next=True), sampling), (following, sampling)]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A step that is ready to start, and its inputs by name."""

    step: Step
    execution: Execution
    inputs: dict[str, Tensor]


class PendingStep:
    """A step under way. What it gives is there when `wait` has returned."""

    def __init__(self, step: Step, run: Run, n_rows: int) -> None:
        """Of the step's outputs the first `n_rows` count."""
        self._step = step
        self._run = run
        self._n_rows = n_rows

    @property
    def given(self) -> Given | None:
        """What a step that follows takes, if the step was started to have one: the tokens it draws."""
        return None if self._step.next_input is None else self._run.given.get(self._step.next_input)

    def wait(self) -> None:
        """Return when the step is done. Raises what went wrong in it."""
        self._run.wait()

    def is_done_within(self, timeout_s: float) -> bool:
        """Wait for at most so long; say whether the step has ended, well or not."""
        return self._run.is_done_within(timeout_s)

    def logits(self) -> FloatArray:
        """Wait, and return float32 [n_rows, n_vocab]."""
        self.wait()
        assert self._step.logits is not None, "the step was started with outputs"
        return self._run.output(self._step.logits).reshape(-1, self._step.logits.ne[0])[: self._n_rows]

    def tokens(self) -> Ids:
        """Wait, and return int32 [n_rows]: the tokens that the device drew."""
        self.wait()
        sampling = self._step.sampling
        assert sampling is not None, "the step was started with sampling"
        check_best(float(self._run.output(sampling.best).min()))
        return self._run.output(sampling.tokens).reshape(-1)[: self._n_rows]

    def log_probs(self) -> FloatArray | None:
        """Wait, and return float32 [n_rows]: log-probabilities of the tokens that the device drew, if asked for."""
        self.wait()
        sampling = self._step.sampling
        if sampling is None or sampling.log_probs is None:
            return None
        return self._run.output(sampling.log_probs).reshape(-1)[: self._n_rows]


class Context:
    """The state of `n_seq` sequences of up to `n_ctx` tokens each.

    Any number of steps may be under way at once; each sees what those started before it leave. Not for several
    threads at once.
    """

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
        self._first_device = placement[cache[0].k]
        self.n_stages = len({placement[layer.k] for layer in cache})
        self._lengths = [0] * limits.n_seq
        self._graphs: OrderedDict[tuple[StepShape, SamplingShape | None], _Prepared] = OrderedDict()
        self._foreseen: dict[int, tuple[_DecodeKey, StepArrays]] = {}

    @property
    def n_seq(self) -> int:
        return self._limits.n_seq

    @property
    def n_vocab(self) -> int:
        return self._model.hparams.n_vocab

    @property
    def n_ctx(self) -> int:
        return self._limits.n_ctx

    def chunk_width(self, n_tokens: int) -> int:
        """Return how many tokens to append at a time where `n_tokens` are to be, of one sequence or several."""
        return chunk_width(n_tokens, self._limits.ubatch, self.n_stages)

    def clear(self, sequence: int) -> None:
        """Forget a sequence's tokens."""
        self._lengths[sequence] = 0

    def room(self, sequence: int) -> int:
        """Return how many more tokens a sequence holds."""
        return self._limits.n_ctx - self._lengths[sequence]

    def need_capacity(self, n_tokens: int) -> None:
        """Raise ContextFullError unless so many tokens fit an empty sequence."""
        if n_tokens > self._limits.n_ctx:
            raise ContextFullError(
                f"{n_tokens} tokens do not fit in a context of {self._limits.n_ctx}; shorten the prompt or raise the "
                "context size"
            )

    def need_room(self, sequence: int, n_tokens: int) -> None:
        """Raise ContextFullError unless a sequence has room for so many more tokens."""
        if n_tokens > self.room(sequence):
            raise ContextFullError(
                f"{n_tokens} more tokens do not fit in a context of {self._limits.n_ctx} that holds "
                f"{self._lengths[sequence]}; shorten the prompt or raise the context size"
            )

    def prefill(self, sequence: int, tokens: Sequence[int]) -> FloatArray:
        """Append tokens to a sequence and return the logits after the last.

        Shapes: result float32 [n_vocab].
        Raises:
            ContextFullError: the tokens do not fit; the sequence is unchanged.
        """
        self.need_room(sequence, len(tokens))
        *chunks, last = chunked(tokens, self.chunk_width(len(tokens)))
        steps = [self.start_append(sequence, chunk, 0) for chunk in chunks]
        steps.append(self.start_append(sequence, last, 1))
        for step in steps:
            step.wait()
        return steps[-1].logits()[0]

    def logits(self, sequence: int, tokens: Sequence[int]) -> FloatArray:
        """Append tokens to a sequence and return the logits after each.

        Shapes: result float32 [n_tokens, n_vocab]. Raises as `prefill`.
        """
        self.need_room(sequence, len(tokens))
        chunks = chunked(tokens, min(self.chunk_width(len(tokens)), MAX_OUTPUTS))
        steps = [self.start_append(sequence, chunk, len(chunk)) for chunk in chunks]
        return np.concatenate([step.logits() for step in steps])

    def decode(self, tokens: Mapping[int, int]) -> dict[int, FloatArray]:
        """Append one token to each of some sequences and return the logits after each.

        Shapes: result sequence → float32 [n_vocab]. Raises as `prefill`.
        """
        rows = self.start_decode(tokens).logits()
        first = min(tokens)
        return {sequence: rows[sequence - first] for sequence in tokens}

    def prepare(self) -> None:
        """Build the graph that `warm_up` runs; the weights need not be there yet."""
        self._prepared(self._shape(0, 1, 1, 1, 1), None)

    def warm_up(self) -> PendingStep:
        """Start one padding token, so that the devices compile what a step needs before anyone waits for it."""
        shape = self._shape(0, 1, 1, 1, 1)
        return self._start(
            shape, step_arrays(shape, [[]], [self._lengths[0]], self._limits.n_cells, hparams=self._model.hparams), 1
        )

    def start_append(
        self, sequence: int, tokens: Sequence[int], n_outputs: int, sampling: DeviceSampling | None = None
    ) -> PendingStep:
        """Start a step that appends at most `ubatch` tokens; it gives the logits of the last `n_outputs` of them.

        The sequence has the tokens from now on. Raises as `prefill`.
        """
        self.need_room(sequence, len(tokens))
        start = self._lengths[sequence]
        n_tokens = min(_bucket(len(tokens)), self._limits.ubatch)
        rows = list(range(len(tokens) - n_outputs, len(tokens)))
        if n_outputs and sampling is None:
            rows += rows[-1:] * (min(_bucket(n_outputs), n_tokens) - n_outputs)
        shape = self._shape(sequence, 1, n_tokens, start + len(tokens), len(rows))
        arrays = step_arrays(shape, [tokens], [start], self._limits.n_cells, rows, self._model.hparams)
        self._lengths[sequence] = start + len(tokens)
        return self._start(shape, arrays, n_outputs, sampling)

    @cached_property
    def can_run_ahead(self) -> bool:
        """Whether a decode step can take its tokens from the one before, without the host."""
        last_device = self._placement[self._weights["output.weight"]]
        if not self._limits.run_ahead or not self._scheduler.can_hand_over(last_device, self._first_device):
            return False
        shape, sampling = replace(self._shape(0, 1, 1, 1, 1), gives_next=True), SamplingShape(1, greedy=True)
        both = [self._prepared(replace(shape, takes_next=takes), sampling) for takes in (False, True)]
        return all(made.execution.hands_over for made in both)

    def start_decode(
        self,
        tokens: Mapping[int, int],
        sampling: DeviceSampling | None = None,
        span: range | None = None,
        *,
        is_followed: bool = False,
    ) -> PendingStep:
        """Start a step that appends one token to each of some sequences.

        It has one row for every sequence of `span` (from the first to the last named, if left out); those that are
        not named stay as they are, and their rows mean nothing. With `is_followed`, which needs `can_run_ahead` and
        sampling, `start_following` may be called with it, else its `given` is to be discarded. Raises as `prefill`.
        """
        span = range(min(tokens), max(tokens) + 1) if span is None else span
        values = np.array([tokens.get(sequence, 0) for sequence in span], np.int32)
        return self._start_decode(tokens, span, sampling, values, is_followed=is_followed)

    def start_following(
        self, step: PendingStep, sequences: Collection[int], sampling: DeviceSampling, span: range
    ) -> PendingStep:
        """Start a step that appends to some sequences the tokens that `step`, of the same `span`, draws for them.

        That may be under way still. The new step may be followed in its turn. Raises as `prefill`.
        """
        values = np.zeros(len(span), np.int32)
        return self._start_decode(sequences, span, sampling, values, is_followed=True, after=step)

    def _start_decode(
        self,
        sequences: Collection[int],
        span: range,
        sampling: DeviceSampling | None,
        values: Ids,
        *,
        is_followed: bool,
        after: PendingStep | None = None,
    ) -> PendingStep:
        for sequence in sequences:
            self.need_room(sequence, 1)
        key = self._decode_key(sequences, span)
        foreseen = self._foreseen.pop(span.start, None)
        layout = foreseen[1] if foreseen is not None and foreseen[0] == key else self._decode_layout(key)
        for sequence in sequences:
            self._lengths[sequence] += 1
        shape = replace(key[0], gives_next=is_followed, takes_next=after is not None)
        return self._start(shape, replace(layout, tokens=values), len(span), sampling, after)

    def foresee_decode(self, sequences: Iterable[int], span: range) -> None:
        """Lay out the step that `start_decode` will be asked for next, as far as can be without its tokens.

        For the time in which the devices work; another step may be asked for all the same.
        """
        sequences = list(sequences)
        if all(self.room(sequence) for sequence in sequences):
            key = self._decode_key(sequences, span)
            self._foreseen[span.start] = key, self._decode_layout(key)

    def _decode_key(self, sequences: Iterable[int], span: range) -> _DecodeKey:
        named = set(sequences)
        used = max(self._lengths[sequence] for sequence in named) + 1
        shape = self._shape(span.start, len(span), 1, used, len(span))
        return shape, tuple((self._lengths[sequence], sequence in named) for sequence in span)

    def _decode_layout(self, key: _DecodeKey) -> StepArrays:
        """Return the arrays of a decode step, all tokens 0."""
        shape, rows = key
        new = [[0] if is_named else [] for _, is_named in rows]
        lengths = [length for length, _ in rows]
        return step_arrays(shape, new, lengths, self._limits.n_cells, hparams=self._model.hparams)

    def _shape(self, first: int, n_seqs: int, n_tokens: int, used: int, n_outputs: int) -> StepShape:
        n_kv = padded_n_kv(used, self._limits.n_cells)
        return StepShape(first, n_seqs, n_tokens, n_kv, n_outputs, self._limits.flash_attn)

    def _start(
        self,
        shape: StepShape,
        arrays: StepArrays,
        n_rows: int,
        sampling: DeviceSampling | None = None,
        after: PendingStep | None = None,
    ) -> PendingStep:
        made = self._prepared(shape, None if sampling is None else sampling.shape)
        inputs = {
            tensor: getattr(arrays, name)
            for name, tensor in made.inputs.items()
            if name != _SAMPLING and tensor is not made.step.taken
        }
        if _SAMPLING in made.inputs:
            assert sampling is not None, "only a step with sampling has this input"
            assert sampling.values is not None, "the shape of a greedy step has no such input"
            inputs[made.inputs[_SAMPLING]] = sampling.values
        taken: dict[Tensor, Given] = {}
        if after is not None:
            assert after.given is not None, "a step is followed that was started to be"
            assert made.step.taken is not None, "its shape says that it takes something"
            taken[made.step.taken] = after.given
        return PendingStep(made.step, made.execution.start(inputs, taken), n_rows)

    def _prepared(self, shape: StepShape, sampling: SamplingShape | None) -> _Prepared:
        key = shape, sampling
        found = self._graphs.get(key)
        if found is None:
            step = build_step(self._model, self._weights, self._cache, shape, sampling)
            handover = Handover(
                {} if step.next_input is None else {step.next_input: self._first_device},
                () if step.taken is None else (step.taken,),
            )
            execution = self._scheduler.prepare(step.graph, self._placement, step.outputs, handover)
            found = self._graphs[key] = _Prepared(step, execution, step.used_inputs())
            while len(self._graphs) > _MAX_GRAPHS:
                _, oldest = self._graphs.popitem(last=False)
                oldest.execution.close()
        self._graphs.move_to_end(key)
        return found


def _bucket(n_tokens: int) -> int:
    """Round a count of tokens up, so that few graph shapes serve all prompts."""
    if n_tokens <= _TOKEN_STEP:
        return 1 << (n_tokens - 1).bit_length()
    return -(-n_tokens // _TOKEN_STEP) * _TOKEN_STEP
