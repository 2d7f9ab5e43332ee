"""Choosing the next token from logits, on the host.

Belongs here: the sampler's parameters, its chain of steps, the uniform numbers, log-probabilities; all
plain numpy. Must not be here: devices, graphs, tokenizers, anything that remembers more than a count.

The chain: repetition penalty, top-k, top-p, min-p, temperature, draw. Tokens are kept in order of
falling logit, ties by lower id; that order and `uniform` decide which token a draw gives, so another
sampler that keeps to both draws the same tokens.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import ComputeError, ConfigError

FloatArray = npt.NDArray[np.float32]
IdArray = npt.NDArray[np.int64]

_N_SEEDS = 1 << 64
_GREEDY_BELOW = 1e-6


@dataclass(frozen=True, slots=True)
class SamplerParams:
    """How to choose tokens.

    `temperature`: 0 is greedy, always the most likely token; so is anything below 1e-6.
    `top_k`: keep this many most likely tokens; 0 is off.
    `top_p`: keep the most likely tokens up to this share of the probability; 1 is off.
    `min_p`: keep tokens at least this share as likely as the best one; 0 is off.
    `repetition_penalty`: weaken the tokens among the last `penalty_last_n` (-1: all, 0: none); 1 is off.
    `seed`: of the uniform numbers; None takes a new one for each Sampler.

    Raises: ConfigError naming the field that has a bad value.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    penalty_last_n: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        self._check_number("temperature", 0.0, 1000.0)
        self._check_whole("top_k", 0, 1 << 31)
        self._check_number("top_p", 0.0, 1.0)
        self._check_number("min_p", 0.0, 1.0)
        self._check_number("repetition_penalty", 0.01, 1000.0)
        self._check_whole("penalty_last_n", -1, 1 << 31)
        if self.seed is not None:
            self._check_whole("seed", 0, _N_SEEDS - 1)

    @property
    def is_greedy(self) -> bool:
        """Whether no number is drawn at all."""
        return self.temperature < _GREEDY_BELOW

    def _check_whole(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(f"{name} must be a whole number from {low} to {high}, not {value!r}")

    def _check_number(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:  # a NaN fails the comparison
            raise ConfigError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")


class Sampler:
    """Draws the tokens of one sequence; its only state is how many it has drawn."""

    def __init__(self, params: SamplerParams) -> None:
        self.params = params
        self.seed = secrets.randbelow(_N_SEEDS) if params.seed is None else params.seed
        self.n_drawn = 0

    def sample(self, logits: FloatArray, history: Sequence[int] = ()) -> int:
        """Return the next token; the i-th call uses `uniform(seed, i)`, counted from 0.

        `history` holds the tokens so far, prompt included; only its end matters, and only if there is
        a penalty. `logits` is not changed.

        Shapes: logits float32 [n_vocab].
        Raises: ComputeError if a logit is NaN or +inf, or if all are -inf.
        """
        index, self.n_drawn = self.n_drawn, self.n_drawn + 1
        _check_logits(logits)
        with np.errstate(over="ignore"):  # a logit far below the best may become -inf
            penalised = self._penalised(logits, history)
            if self.params.is_greedy:
                return int(np.argmax(penalised))
            ids = self._candidates(penalised)
            scaled = (penalised[ids] - penalised[ids[0]]) / np.float32(self.params.temperature)  # [n_kept]
            return int(ids[_draw(scaled, uniform(self.seed, index))])

    def _penalised(self, logits: FloatArray, history: Sequence[int]) -> FloatArray:
        last_n = self.params.penalty_last_n
        recent = history if last_n < 0 else history[max(0, len(history) - last_n) :]
        if self.params.repetition_penalty == 1.0 or not len(recent):
            return logits
        ids = np.unique(np.asarray(recent, dtype=np.int64))  # [n_recent]
        if ids[0] < 0 or ids[-1] >= len(logits):
            raise ConfigError(f"history has a token outside the vocabulary of {len(logits)} tokens")
        penalty = np.float32(self.params.repetition_penalty)
        changed = logits.astype(np.float32, copy=True)  # [n_vocab]
        changed[ids] = np.where(changed[ids] > 0, changed[ids] / penalty, changed[ids] * penalty)
        return changed

    def _candidates(self, logits: FloatArray) -> IdArray:
        """Return the ids that top-k, top-p and min-p leave, the best first; at least one."""
        ids = _best(logits, self.params.top_k)
        kept = logits[ids]  # [n_kept], falling
        n_kept = len(ids)
        if self.params.top_p < 1.0:
            cumulative = np.cumsum(np.exp(kept - kept[0]))  # [n_kept]
            n_kept = int(np.argmax(cumulative >= np.float32(self.params.top_p) * cumulative[-1])) + 1
        if self.params.min_p > 0.0:
            floor = kept[0] + np.float32(math.log(self.params.min_p))
            n_kept = min(n_kept, int(np.count_nonzero(kept >= floor)))
        return ids[: max(1, n_kept)]


def uniform(seed: int, index: int) -> np.float32:
    """Return the uniform number in [0, 1) of draw `index`, the same on every machine.

    It is a function of its arguments alone: the top 24 bits of the first word that Philox-4x64 with key
    `seed` gives for the counter `index`. 24 bits are all that a float32 in [0, 1) can hold evenly.
    """
    word = int(np.random.Philox(key=seed, counter=index).random_raw())
    return np.float32((word >> 40) * 2.0**-24)


def log_probabilities(logits: FloatArray) -> FloatArray:
    """Return the logarithm of the softmax of each row.

    Shapes: logits float32 [..., n_vocab], and so the result.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)  # [..., n_vocab]
    total = np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)  # [..., 1]
    return (shifted - np.log(total)).astype(np.float32)


def _check_logits(logits: FloatArray) -> None:
    if logits.ndim != 1 or not logits.size:
        raise ComputeError(f"the logits of one token must be one row, not of shape {logits.shape}")
    best = logits.max()  # a NaN anywhere makes the maximum NaN
    if math.isnan(best):
        first = int(np.argmax(np.isnan(logits)))
        n_bad = np.count_nonzero(np.isnan(logits))
        raise ComputeError(f"{n_bad} of {len(logits)} logits are NaN, the first at token {first}")
    if math.isinf(best):
        raise ComputeError(f"the best of {len(logits)} logits is {best}: no token can be chosen")


def _best(logits: FloatArray, top_k: int) -> IdArray:
    """Return the `top_k` best ids (0: all) by falling logit, ties by lower id."""
    n_vocab = len(logits)
    if not 0 < top_k < n_vocab:
        return np.argsort(-logits, kind="stable")
    threshold = np.partition(logits, n_vocab - top_k)[n_vocab - top_k]
    above = np.flatnonzero(logits > threshold)
    ties = np.flatnonzero(logits == threshold)[: top_k - len(above)]
    ids = np.concatenate([above, ties])
    return ids[np.argsort(-logits[ids], kind="stable")]  # both halves are in order of id


def _draw(scaled: FloatArray, number: np.float32) -> int:
    """Return the first place whose cumulative probability exceeds `number`.

    Shapes: scaled float32 [n_kept], falling from 0.
    """
    cumulative = np.cumsum(np.exp(scaled))  # [n_kept]
    return int(np.searchsorted(cumulative, number * cumulative[-1], side="right"))
