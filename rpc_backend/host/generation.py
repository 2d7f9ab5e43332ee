"""From a prompt to tokens and text: the loop of prefill, sample, decode.

Belongs here: the life of a generation. Must not be here: graphs and devices (`context`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rpc_backend.errors import ConfigError, ContextFullError
from rpc_backend.host.context import Context, Floats
from rpc_backend.host.sampling import Sampler, SamplerParams
from rpc_backend.host.tokenizer import StreamDecoder, Tokenizer

StopReason = Literal["end", "stop", "length"]
"""Why a generation ended: an end token, a stop text, or the token or context limit."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Counts and seconds of one generation; the first token counts as prompt work."""

    prompt_tokens: int
    prompt_s: float
    decode_tokens: int
    decode_s: float

    @property
    def prompt_tps(self) -> float:
        return self.prompt_tokens / self.prompt_s if self.prompt_s else 0.0

    @property
    def decode_tps(self) -> float:
        return self.decode_tokens / self.decode_s if self.decode_s else 0.0


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation; `tokens` are those generated, without the end token."""

    text: str
    tokens: list[int]
    stop_reason: StopReason
    timings: Timings


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Text that became certain with one token; empty while a character or a stop text is incomplete."""

    text: str
    token: int | None


class _StopText:
    """Passes text on, but holds back what may be the beginning of a stop text."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found = False

    def feed(self, text: str, *, last: bool = False) -> str:
        self._held += text
        ends = [index for stop in self._stops if (index := self._held.find(stop)) >= 0]
        if ends:
            self.found = True
            out, self._held = self._held[: min(ends)], ""
            return out
        keep = 0 if last else self._possible_start()
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out

    def _possible_start(self) -> int:
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0


@dataclass(slots=True)
class Task:
    """One sequence being generated: its history, and what is known of its text so far."""

    prompt: list[int]
    max_tokens: int
    sampler: Sampler
    decoder: StreamDecoder
    end_ids: frozenset[int]
    stop: _StopText
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    stop_reason: StopReason | None = None
    prompt_s: float = 0.0
    decode_s: float = 0.0

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, prompt: list[int], max_tokens: int, params: SamplerParams, stop: Sequence[str]
    ) -> Task:
        if not prompt:
            raise ConfigError("the prompt is empty; give at least one token")
        if max_tokens < 0:
            raise ConfigError(f"max_tokens {max_tokens} is negative")
        bad = next((token for token in prompt if not 0 <= token < tokenizer.n_vocab), None)
        if bad is not None:
            raise ConfigError(f"prompt token {bad} is not in the vocabulary of {tokenizer.n_vocab}")
        decoder = StreamDecoder(tokenizer)
        return cls(list(prompt), max_tokens, Sampler(params), decoder, tokenizer.end_ids, _StopText(stop))

    def accept(self, logits: Floats) -> StreamPiece:
        """Sample the next token and return the text it makes certain; sets `stop_reason` at the end."""
        token = self.sampler.sample(logits, [*self.prompt, *self.tokens])
        if token in self.end_ids:
            return self.finish("end")
        self.tokens.append(token)
        text = self.stop.feed(self.decoder.feed(token))
        self.pieces.append(text)
        if self.stop.found:
            self.stop_reason = "stop"
        return StreamPiece(text, token)

    def finish(self, reason: StopReason) -> StreamPiece:
        """End the generation and return the text still held back."""
        text = self.stop.feed(self.decoder.finish(), last=True)
        self.pieces.append(text)
        self.stop_reason = "stop" if self.stop.found else reason
        return StreamPiece(text, None)

    def result(self) -> Generation:
        timings = Timings(len(self.prompt), self.prompt_s, max(0, len(self.tokens) - 1), self.decode_s)
        return Generation("".join(self.pieces), self.tokens, self.stop_reason or "length", timings)


def stream_one(context: Context, task: Task) -> Iterator[StreamPiece]:
    """Generate in sequence 0, piece by piece. Raises ContextFullError if the prompt does not fit."""
    context.clear(0)
    if task.max_tokens == 0:
        task.stop_reason = "length"
        return
    yield _prefill(context, 0, task)
    while task.stop_reason is None:
        if len(task.tokens) >= task.max_tokens or context.room(0) == 0:
            yield task.finish("length")
            return
        started = time.perf_counter()
        logits = context.decode({0: task.tokens[-1]})[0]
        piece = task.accept(logits)
        task.decode_s += time.perf_counter() - started
        yield piece


def run_batch(context: Context, tasks: Sequence[Task]) -> list[Generation]:
    """Generate all tasks side by side, one sequence each, and return when the last has ended.

    Raises:
        ContextFullError: more tasks than sequences, or a prompt that does not fit.
    """
    if len(tasks) > context.n_seq:
        raise ContextFullError(f"{len(tasks)} prompts need as many sequences; this context has {context.n_seq}")
    live = {}
    for sequence, task in enumerate(tasks):
        context.clear(sequence)
        _prefill(context, sequence, task)
        live[sequence] = task
    while live := {sequence: task for sequence, task in live.items() if _wants_more(context, sequence, task)}:
        started = time.perf_counter()
        logits = context.decode({sequence: task.tokens[-1] for sequence, task in live.items()})
        for sequence, task in live.items():
            task.accept(logits[sequence])
            task.decode_s += time.perf_counter() - started
    return [task.result() for task in tasks]


def _wants_more(context: Context, sequence: int, task: Task) -> bool:
    if task.stop_reason is None and (len(task.tokens) >= task.max_tokens or context.room(sequence) == 0):
        task.finish("length")
    return task.stop_reason is None


def _prefill(context: Context, sequence: int, task: Task) -> StreamPiece:
    started = time.perf_counter()
    logits = context.prefill(sequence, task.prompt)
    piece = task.accept(logits)
    task.prompt_s = time.perf_counter() - started
    return piece
