"""One generation: what was asked, what came so far, when it ends.

Belongs here: the state of a generation and its text. Must not be here: when it runs (`engine`), or on what.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rpc_backend.errors import ConfigError
from rpc_backend.host.sampling import FloatArray, Sampler, SamplerParams, log_probabilities
from rpc_backend.host.tokenizer import StreamDecoder, Tokenizer

StopReason = Literal["end", "stop", "length", "cancelled"]
"""Why a generation ended: an end token, a stop text, the token or context limit, or its user left."""


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
    """A finished generation; `tokens` are those generated, without the end token.

    `log_probs` has each token's log-probability among the whole vocabulary at temperature 1, if asked for.
    """

    text: str
    tokens: list[int]
    stop_reason: StopReason
    timings: Timings
    log_probs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Text that became certain with one token; empty while a character or a stop text is incomplete."""

    text: str
    token: int | None


class _StopText:
    """Passes text on, but holds back what may be the beginning of a stop text."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._held = ""
        self.found = False

    def __bool__(self) -> bool:
        return bool(self._stops)

    def feed(self, text: str, *, last: bool = False) -> str:
        if not self._stops:
            return text
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
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0


@dataclass(slots=True)
class Job:
    """A generation under way: its history, and what is known of its text so far.

    A token is first counted (`accept`, `take`), which is all that the next step needs, and becomes text in `read`.
    """

    prompt: list[int]
    max_tokens: int
    sampler: Sampler
    decoder: StreamDecoder
    end_ids: frozenset[int]
    stop: _StopText
    wants_log_probs: bool = False
    history: list[int] = field(init=False)
    log_probs: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    stop_reason: StopReason | None = None
    unread: list[int] = field(default_factory=list)
    started_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0

    def __post_init__(self) -> None:
        self.history = list(self.prompt)

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        max_tokens: int,
        params: SamplerParams,
        stop: Sequence[str],
        *,
        ignore_end: bool = False,
        log_probs: bool = False,
    ) -> Job:
        """Check what was asked and make its job; with `ignore_end` no end token ends it.

        With `log_probs` it keeps the log-probability of each token.

        Raises:
            ConfigError: an empty prompt, a token outside the vocabulary, a negative count.
        """
        if not prompt:
            raise ConfigError("the prompt is empty; give at least one token")
        if max_tokens < 0:
            raise ConfigError(f"max_tokens {max_tokens} is negative")
        bad = next((token for token in prompt if not 0 <= token < tokenizer.n_vocab), None)
        if bad is not None:
            raise ConfigError(f"prompt token {bad} is not in the vocabulary of {tokenizer.n_vocab}")
        decoder = StreamDecoder(tokenizer)
        end_ids = frozenset() if ignore_end else tokenizer.end_ids
        return cls(list(prompt), max_tokens, Sampler(params), decoder, end_ids, _StopText(stop), log_probs)

    @property
    def ends_by_text(self) -> bool:
        """Whether a token's text may end it, so that it must be read before the next step."""
        return bool(self.stop)

    def accept(self, logits: FloatArray) -> None:
        """Draw the next token; sets `stop_reason` at an end token."""
        token = self.sampler.sample(logits, self.history)
        self._add(token, float(log_probabilities(logits)[token]) if self.wants_log_probs else None)

    def take(self, token: int, log_prob: float | None = None) -> None:
        """As `accept`, with a token that the device drew."""
        self._add(token, log_prob)

    def end_if_full(self, room: int) -> None:
        """End it for length if its sequence has no room left, or it has all the tokens it asked for."""
        if self.stop_reason is None and (len(self.tokens) >= self.max_tokens or room == 0):
            self.stop_reason = "length"

    def read(self) -> list[StreamPiece]:
        """Return the text that became certain with the tokens since the last call; the last piece of an ended
        generation is what was held back. A stop text in it ends the generation, whatever else did."""
        pieces: list[StreamPiece] = []
        for token in self.unread:
            pieces.append(StreamPiece(self.stop.feed(self.decoder.feed(token)), token))
            if self.stop.found:
                break
        self.unread.clear()
        if self.stop_reason is not None and not self.stop.found:
            pieces.append(StreamPiece(self.stop.feed(self.decoder.finish(), last=True), None))
        if self.stop.found:
            self.stop_reason = "stop"
        self.pieces.extend(piece.text for piece in pieces)
        return pieces

    def _add(self, token: int, log_prob: float | None) -> None:
        self.last_token_s = time.perf_counter()
        self.first_token_s = self.first_token_s or self.last_token_s
        if token in self.end_ids:
            self.stop_reason = "end"
            return
        self.tokens.append(token)
        self.history.append(token)
        self.unread.append(token)
        if self.wants_log_probs and log_prob is not None:
            self.log_probs.append(log_prob)

    def result(self) -> Generation:
        """Return the whole of what came so far."""
        prompt_s, decode_s = self.first_token_s - self.started_s, self.last_token_s - self.first_token_s
        timings = Timings(len(self.prompt), prompt_s, max(0, len(self.tokens) - 1), decode_s)
        return Generation("".join(self.pieces), self.tokens, self.stop_reason or "length", timings, self.log_probs)
