"""Comparison of a model's log-probabilities with answers recorded from another engine.

Belongs here: reading recorded answers, feeding them, measuring how far ours are. Must not be here: limits,
which a test sets.

Two forms of JSON files, each a list of cases. Whole: `prompt_tokens`, `forced_tokens` and `steps`, with
`logprobs` over the whole vocabulary before each forced token. Top: `prompt`, `prompt_tokens`, `tokens` and `top`, the
best `[token, log-probability]` pairs before each token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rpc_backend.host import LLM
from rpc_backend.host.sampling import FloatArray, log_probabilities

FLOOR = -12.0
"""Entries below this log-probability are not compared."""

CLEAR_LEAD = 0.3
"""Where the two best differ by less, either may win."""

Feed = Callable[[LLM, Sequence[int], Sequence[int]], FloatArray]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far ours are: the largest difference of one entry, and the mean Kullback-Leibler divergence."""

    worst: float
    divergence: float


@dataclass(frozen=True, slots=True)
class TopAgreement:
    """`compared` clear best tokens, `differing` of them ours put another first; mean divergence over the top."""

    compared: int
    differing: int
    divergence: float
    tokenised_alike: bool


def feed_stepwise(llm: LLM, prompt: Sequence[int], forced: Sequence[int]) -> FloatArray:
    """Feed the prompt, then each forced token but the last in a step of its own; logits before each forced token."""
    llm.context.clear(0)
    rows = [llm.context.prefill(0, prompt)]
    rows += [llm.context.decode({0: token})[0] for token in forced[:-1]]
    return np.array(rows)


def feed_at_once(llm: LLM, prompt: Sequence[int], forced: Sequence[int]) -> FloatArray:
    """Feed prompt and forced tokens as one prompt; logits before each forced token."""
    return llm.logits([*prompt, *forced[:-1]])[len(prompt) - 1 :]


def compare_whole(llm: LLM, path: Path, feed: Feed) -> Agreement:
    """Compare with answers over the whole vocabulary."""
    worst, divergences = 0.0, []
    for case in _cases(path):
        expected = np.array([step["logprobs"] for step in case["steps"]], np.float32)
        ours = log_probabilities(feed(llm, case["prompt_tokens"], case["forced_tokens"]))
        difference = expected - ours
        worst = max(worst, float(np.abs(difference)[expected > FLOOR].max()))
        divergences += list((np.exp(expected) * difference).sum(axis=1))
    return Agreement(worst, float(np.mean(divergences)))


def compare_top(llm: LLM, path: Path) -> TopAgreement:
    """Compare with the best tokens of each position."""
    compared, differing, divergences, alike = 0, 0, [], True
    for case in _cases(path):
        alike &= llm.tokenize(case["prompt"]) == case["prompt_tokens"]
        ours = log_probabilities(feed_at_once(llm, case["prompt_tokens"], case["tokens"]))
        for row, top in zip(ours, case["top"], strict=True):
            ids = [token for token, _ in top]
            expected = np.array([value for _, value in top])
            divergences.append((np.exp(expected) * (expected - row[ids])).sum())
            if expected[0] - expected[1] > CLEAR_LEAD:
                compared += 1
                differing += int(row.argmax()) != ids[0]
    return TopAgreement(compared, differing, float(np.mean(divergences)), alike)


def _cases(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))
