"""Choosing the next tokens from logits, in the step's graph: only token ids leave the device.

Belongs here: the nodes behind the logits, and the values of their one input. Must not be here: the sampler on the
host (`host.sampling`), which chooses the same tokens, and who samples where.

The graph keeps, per row, the `k` best tokens in order and works with prefixes of them: top-k, top-p and min-p each keep
the first so many, which makes masks of 0 and 1. A token is the first place whose cumulative probability exceeds the
row's uniform number times the whole. All arithmetic is the host's, operation by operation in float32, so both choose
alike wherever a backend computes UNARY EXP to the nearest float32 and CUMSUM in order, as ours do. Where exp is 2 units
in the last place off, a draw is another one if it falls that near to a boundary: with a probability below k / 10^6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import ConfigError, GraphError
from rpc_backend.graph import Tensor, Unary, build
from rpc_backend.graph.element_types import F32
from rpc_backend.models.sampler_params import SamplerParams

MAX_K = 1024
"""Most candidates of a row: a sort of more costs a device more than the logits cost the wire."""
_LEAST_K = 8
_IDLE = SamplerParams(temperature=0.0)


class SamplingField(IntEnum):
    """What the sampling input holds for each row."""

    INVERSE_TEMPERATURE = 0
    TOP_K = 1
    TOP_P_BOUND = 2
    LOG_MIN_P = 3
    UNIFORM = 4


@dataclass(frozen=True, slots=True)
class SamplingShape:
    """All that decides the nodes behind the logits.

    `n_rows` rows of logits; `k` candidates of each, at least as many as any row's top-k keeps. With `greedy` every row
    takes its best token, and `k` does not matter. With `log_probs` the chosen tokens' log-probabilities are read too.
    """

    n_rows: int
    k: int = 0
    greedy: bool = False
    log_probs: bool = False

    @classmethod
    def covering(
        cls, params: Iterable[SamplerParams], n_rows: int, n_vocab: int, *, log_probs: bool = False
    ) -> SamplingShape:
        """Return the shape for rows that sample by `params`; few shapes serve many parameters.

        Raises:
            ConfigError: parameters that `can_sample_on_backend` refuses.
        """
        largest = 0
        for one in params:
            if not can_sample_on_backend(one, n_vocab):
                raise ConfigError(f"{one} cannot be sampled in a graph over {n_vocab} tokens; sample on the host")
            largest = max(largest, 0 if one.is_greedy else _n_candidates(one, n_vocab))
        if not largest:
            return cls(n_rows, greedy=True, log_probs=log_probs)
        return cls(n_rows, min(n_vocab, max(_LEAST_K, 1 << (largest - 1).bit_length())), log_probs=log_probs)


@dataclass(frozen=True, slots=True)
class SamplingStep:
    """The nodes behind the logits.

    Shapes: input F32 [5, n_rows], the fields of SamplingField, None if greedy; tokens I32 [n_rows]; best F32 [n_rows],
    each row's largest logit: if it is not finite, no token could be chosen and the row's token means nothing, but is
    one of the vocabulary; log_probs F32 [n_rows], over the whole vocabulary at temperature 1, None if not asked.
    """

    input: Tensor | None
    tokens: Tensor
    best: Tensor
    log_probs: Tensor | None

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors that are read after the step: tokens, best, and log_probs if asked."""
        return [self.tokens, self.best, *([self.log_probs] if self.log_probs is not None else [])]


def can_sample_on_backend(params: SamplerParams, n_vocab: int) -> bool:
    """Return whether the graph can choose by these parameters just as the host does.

    It knows nothing of the tokens so far, hence no repetition penalty, and keeps at most MAX_K candidates: top-k must
    be on and not above it, unless the vocabulary is that small or the choice is greedy.
    """
    return not params.has_penalty and (params.is_greedy or _n_candidates(params, n_vocab) <= MAX_K)


def _n_candidates(params: SamplerParams, n_vocab: int) -> int:
    return min(params.top_k or n_vocab, n_vocab)


def sampling_values(params: Sequence[SamplerParams | None], uniforms: Sequence[float]) -> npt.NDArray[np.float32]:
    """Return the values of the sampling input; a row without parameters is idle and takes its best token.

    `uniforms` holds each row's number of `uniform`. A greedy row among others is one with a top-k of 1.

    Shapes: result float32 [n_rows, 5].
    Raises:
        ConfigError: not one uniform number for each row.
    """
    if len(params) != len(uniforms):
        raise ConfigError(f"{len(uniforms)} uniform numbers for {len(params)} rows")
    values = np.empty((len(params), len(SamplingField)), np.float32)
    values[:, : SamplingField.UNIFORM] = [_settings(one or _IDLE) for one in params]
    values[:, SamplingField.UNIFORM] = uniforms
    return values


@lru_cache(maxsize=1024)
def _settings(params: SamplerParams) -> tuple[float, ...]:
    """The fields that stay as they are from draw to draw."""
    top_k = 1 if params.is_greedy else min(params.top_k or MAX_K, MAX_K)
    return float(params.inverse_temperature), float(top_k), float(params.top_p_bound), float(params.log_min_p)


def build_sampling(logits: Tensor, shape: SamplingShape) -> SamplingStep:
    """Append the choice of a token for each row of logits.

    Shapes: logits F32 [n_vocab, n_rows], packed.
    Raises:
        GraphError: the logits have other rows than the shape, or k is not within 1 and MAX_K or the vocabulary.
    """
    n_vocab, n_rows = logits.ne[:2]
    if logits.type is not F32 or logits.ne[2:] != (1, 1) or n_rows != shape.n_rows or not n_rows:
        raise GraphError(f"{logits} are not the logits of {shape.n_rows} rows to sample from")
    if not shape.greedy and not 1 <= shape.k <= min(MAX_K, n_vocab):
        raise GraphError(f"{shape.k} candidates of {n_vocab} tokens; it must be 1 to {min(MAX_K, n_vocab)}")
    return _greedy(logits, shape) if shape.greedy else _drawn(logits, shape)


def _greedy(logits: Tensor, shape: SamplingShape) -> SamplingStep:
    tokens = build.argmax(logits)  # [n_rows]
    places = build.reshape(tokens, (1, shape.n_rows))
    log_probs = _log_of_best(logits, places) if shape.log_probs else None
    return _named(SamplingStep(None, tokens, _picked(logits, places), log_probs))


def _drawn(logits: Tensor, shape: SamplingShape) -> SamplingStep:
    rows = _Rows(build.leaf(F32, (len(SamplingField), shape.n_rows), "sampling"))
    ids = build.top_k(logits, shape.k)  # [k, n_rows], the best first
    kept = build.reshape(_rows_of(logits, ids), (shape.k, shape.n_rows))  # [k, n_rows]
    best = build.cont(_column(kept, 0))  # [1, n_rows]
    distances = build.sub(kept, best)  # [k, n_rows], falling from 0
    mask = rows.mask(distances)
    places = rows.draw(distances, mask)  # [1, n_rows]
    tokens = build.reshape(_rows_of(ids, places), (shape.n_rows,))
    log_probs = None
    if shape.log_probs:
        distance = _picked(distances, places)  # [n_rows]
        log_probs = build.add(distance, _log_of_best(logits, _column(ids, 0)))
    return _named(SamplingStep(rows.input, tokens, build.reshape(best, (shape.n_rows,)), log_probs))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The sampling input, and the parts of the chain that read it. Masks hold 1 for what is kept, else 0."""

    input: Tensor

    def field(self, field: SamplingField) -> Tensor:
        """One number per row: [1, n_rows]."""
        return _column(self.input, field)

    def mask(self, distances: Tensor) -> Tensor:
        """What top-k, top-p and min-p leave of the candidates: [k, n_rows]."""
        # Counting down from -1: any number between -1 and -1 is -1.
        ranks = build.cumsum(build.clamp(distances, -1.0, -1.0))
        in_top_k = _first(ranks, self.field(SamplingField.TOP_K))
        shares = build.cumsum(build.mul(build.unary(Unary.EXP, distances), in_top_k))
        enough = build.mul(_column(shares, shares.ne[0] - 1), self.field(SamplingField.TOP_P_BOUND))  # [1, n_rows]
        n_below = build.sum_rows(_is_below(shares, enough))  # [1, n_rows]
        in_top_p = _first(ranks, build.scale(n_below, 1.0, 1.0))
        too_far = _is_below(distances, self.field(SamplingField.LOG_MIN_P))
        in_min_p = build.scale(too_far, -1.0, 1.0)
        return build.mul(build.mul(in_top_k, in_top_p), in_min_p)

    def draw(self, distances: Tensor, mask: Tensor) -> Tensor:
        """The place of each row's token among its candidates: I32 [1, n_rows]."""
        scaled = build.mul(distances, self.field(SamplingField.INVERSE_TEMPERATURE))
        shares = build.cumsum(build.mul(build.unary(Unary.EXP, scaled), mask))
        whole = _column(shares, shares.ne[0] - 1)
        drawn = build.mul(whole, self.field(SamplingField.UNIFORM))  # [1, n_rows]
        # The mask only matters to a backend whose sums do not grow in order.
        beyond = build.mul(build.unary(Unary.STEP, build.sub(shares, drawn)), mask)
        return build.reshape(build.argmax(beyond), (1, mask.ne[1]))


def _column(a: Tensor, index: int) -> Tensor:
    """Element `index` of every row: a view [1, n_rows]."""
    return build.view(a, (1, a.ne[1]), (a.nb[0], a.nb[1], a.nb[2], a.nb[3]), index * a.nb[0])


def _first(ranks: Tensor, counts: Tensor) -> Tensor:
    """The mask of the first so many places of each row; ranks count down from -1."""
    return build.unary(Unary.STEP, build.add(ranks, build.scale(counts, 1.0, 0.5)))


def _is_below(a: Tensor, bounds: Tensor) -> Tensor:
    """1 where an element is less than its row's bound, else 0."""
    return build.unary(Unary.STEP, build.unary(Unary.NEG, build.sub(a, bounds)))


def _rows_of(a: Tensor, places: Tensor) -> Tensor:
    """Elements by their places in each row: [1, n_places, n_rows]; a [n, n_rows], places I32 [n_places, n_rows]."""
    return build.get_rows(build.reshape(a, (1, a.ne[0], a.ne[1])), places)


def _picked(a: Tensor, places: Tensor) -> Tensor:
    """One element of each row: [n_rows]; places I32 [1, n_rows]."""
    return build.reshape(_rows_of(a, places), (a.ne[1],))


def _log_of_best(logits: Tensor, places: Tensor) -> Tensor:
    """The log-probability of each row's best token, whose probability is never too small: [n_rows]."""
    return build.log(_picked(build.soft_max(logits), places))


def _named(step: SamplingStep) -> SamplingStep:
    step.tokens.name, step.best.name = "sampled_tokens", "sampled_best"
    if step.log_probs is not None:
        step.log_probs.name = "sampled_log_probs"
    return step
