"""Choosing the next token from logits, on the host.

Belongs here: the chain of steps that chooses, log-probabilities; all plain numpy. Must not be here: devices, graphs
(`models.sampling_graph` does the same on a device), tokenizers, anything that remembers more than a count.

The chain: repetition penalty, top-k, top-p, min-p, temperature, draw. Tokens are kept in order of
falling logit, ties by lower id. Everything is float32, added in order, and exp is rounded to the nearest float32, so
that another sampler that keeps to this draws the same tokens.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import ComputeError, ConfigError
from rpc_backend.models.sampler_params import N_SEEDS, SamplerParams, uniform, uniforms

__all__ = ["Sampler", "SamplerParams", "check_best", "log_probabilities", "uniform"]

FloatArray = npt.NDArray[np.float32]
IdArray = npt.NDArray[np.int64]

_NUMBERS_AT_ONCE = 64
_N_PILES = 512


class Sampler:
    """Draws the tokens of one sequence; its only state is how many it has drawn.

    `n_drawn` counts; the numbers of the next draws are made some at a time.
    """

    def __init__(self, params: SamplerParams) -> None:
        self.params = params
        self.seed = secrets.randbelow(N_SEEDS) if params.seed is None else params.seed
        self.n_drawn = 0
        self._numbers: FloatArray = np.empty(0, np.float32)

    def sample(self, logits: FloatArray, history: Sequence[int] = ()) -> int:
        """Return the next token; the i-th call uses `uniform(seed, i)`, counted from 0.

        `history` holds the tokens so far, prompt included; only its end matters, and only if there is
        a penalty. `logits` is not changed.

        Shapes: logits float32 [n_vocab].
        Raises: ComputeError if a logit is NaN or +inf, or if all are -inf.
        """
        number = self.next_uniform()
        _check_logits(logits)
        with np.errstate(over="ignore"):  # a logit far below the best may become -inf
            penalised = self._penalised(logits, history)
            if self.params.is_greedy:
                return int(np.argmax(penalised))
            ids = _best(penalised, self.params.top_k)
            distances = penalised[ids] - penalised[ids[0]]  # [n_best], falling from 0
            kept = distances[: self._n_candidates(distances)]
            return int(ids[_draw(kept * self.params.inverse_temperature, number)])

    def next_uniform(self) -> np.float32:
        """Return the number that the next draw uses, and count the draw: the draw itself is made elsewhere."""
        place = self.n_drawn % _NUMBERS_AT_ONCE
        if place == 0:
            self._numbers = uniforms(self.seed, self.n_drawn, _NUMBERS_AT_ONCE)
        self.n_drawn += 1
        return self._numbers[place]

    def _penalised(self, logits: FloatArray, history: Sequence[int]) -> FloatArray:
        last_n = self.params.penalty_last_n
        recent = history if last_n < 0 else history[max(0, len(history) - last_n) :]
        if not self.params.has_penalty or not len(recent):
            return logits
        ids = np.unique(np.asarray(recent, dtype=np.int64))  # [n_recent]
        if ids[0] < 0 or ids[-1] >= len(logits):
            raise ConfigError(f"history has a token outside the vocabulary of {len(logits)} tokens")
        penalty = np.float32(self.params.repetition_penalty)
        changed = logits.astype(np.float32, copy=True)  # [n_vocab]
        changed[ids] = np.where(changed[ids] > 0, changed[ids] / penalty, changed[ids] * penalty)
        return changed

    def _n_candidates(self, distances: FloatArray) -> int:
        """Return how many of the best top-p and min-p leave; at least one.

        Shapes: distances float32 [n_best], falling from 0.
        """
        n_kept = len(distances)
        if self.params.top_p < 1.0:
            cumulative = np.cumsum(_exp(distances))  # [n_best]
            n_kept = min(n_kept, 1 + int(np.count_nonzero(cumulative < self.params.top_p_bound * cumulative[-1])))
        return min(n_kept, int(np.count_nonzero(distances >= self.params.log_min_p)))


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


def check_best(best: float) -> None:
    """Check the largest logit of a row that a device has chosen from; NaN if one of the row is.

    Raises: ComputeError if the device could not choose.
    """
    if not math.isfinite(best):
        raise ComputeError(f"the best logit is {best}: no token can be chosen")


def _best(logits: FloatArray, top_k: int) -> IdArray:
    """Return the `top_k` best ids (0: all) by falling logit, ties by lower id."""
    n_vocab = len(logits)
    if not 0 < top_k < n_vocab:
        return np.argsort(-logits, kind="stable")
    if top_k <= _N_PILES // 4 and n_vocab >= 8 * _N_PILES:
        candidates = _candidates(logits, top_k)
        return candidates[_best_of(logits[candidates], top_k)]
    return _best_of(logits, top_k)


def _candidates(logits: FloatArray, top_k: int) -> IdArray:
    """Return ids, in order, of all logits that may be among the `top_k` best, which are few as a rule.

    Each of the `top_k` best maxima of piles is a logit, so the last of them is not above the last of the best logits.
    """
    piles = logits[: len(logits) - len(logits) % _N_PILES].reshape(-1, _N_PILES)
    maxima = piles.max(axis=0)  # [_N_PILES]
    return np.flatnonzero(logits >= np.partition(maxima, _N_PILES - top_k)[_N_PILES - top_k])


def _best_of(logits: FloatArray, top_k: int) -> IdArray:
    """As `_best`, of a row that has at least `top_k` logits."""
    place = len(logits) - top_k
    threshold = np.partition(logits, place)[place]
    above = np.flatnonzero(logits > threshold)
    ties = np.flatnonzero(logits == threshold)[: top_k - len(above)]
    ids = np.concatenate([above, ties])
    return ids[np.argsort(-logits[ids], kind="stable")]  # both halves are in order of id


def _exp(values: FloatArray) -> FloatArray:
    """e to the power of values, to the nearest float32 on every machine."""
    return np.exp(values.astype(np.float64)).astype(np.float32)


def _draw(scaled: FloatArray, number: np.float32) -> int:
    """Return the first place whose cumulative probability exceeds `number`.

    There is one: `number` is at most 1 - 2^-24, and then its product with the whole is below the whole.

    Shapes: scaled float32 [n_kept], falling from 0.
    """
    cumulative = np.cumsum(_exp(scaled))  # [n_kept]
    return int(np.searchsorted(cumulative, number * cumulative[-1], side="right"))
