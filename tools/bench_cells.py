"""What ours and llama.cpp are compared on: workloads, the figures wanted of each, and measuring both in turn.

Belongs here: cells and rounds. Must not be here: how an arm runs a workload (`bench_arms`), or printing.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

OURS, THEIRS = "ours", "llama.cpp"


class Where(StrEnum):
    """What runs the model: two worker processes of one thread each, or this process with two threads."""

    WORKERS = "2 workers x 1 thread"
    PROCESS = "in process, 2 threads"


@dataclass(frozen=True, slots=True)
class Workload:
    """`n_prompt` tokens of each of `n_seqs` sequences, then `n_decode` steps of one token each.

    `is_prefill` says which of the two is timed. `name` is how the tables call it.
    """

    name: str
    where: Where
    is_prefill: bool
    n_seqs: int
    n_prompt: int
    n_decode: int

    @property
    def title(self) -> str:
        return f"{self.where}: {self.name}"

    @property
    def n_timed(self) -> int:
        """Tokens of the timed part."""
        return self.n_seqs * (self.n_prompt if self.is_prefill else self.n_decode)

    def rate(self, prefill_s: float, decode_s: float) -> float:
        """Return tokens per second of the timed part."""
        return self.n_timed / (prefill_s if self.is_prefill else decode_s)

    def shortened(self) -> Workload:
        """Return the quick form: a quarter of the steps, and short prompts where they are not timed."""
        if self.is_prefill:
            return self
        return replace(self, n_prompt=min(8, self.n_prompt), n_decode=max(6, self.n_decode // 4))


WORKLOADS = (
    Workload("decode 1", Where.WORKERS, False, 1, 32, 64),
    Workload("decode 8", Where.WORKERS, False, 8, 32, 32),
    Workload("decode 32", Where.WORKERS, False, 32, 16, 24),
    Workload("prefill 512", Where.WORKERS, True, 1, 512, 1),
    Workload("decode 1", Where.PROCESS, False, 1, 32, 64),
    Workload("prefill 512", Where.PROCESS, True, 1, 512, 1),
)

GOALS: dict[str, tuple[float, ...]] = {
    "demo": (2.0, 4.0, 6.0, 6.0, 1.3, 5.0),
    "1b-q4_k_m": (1.35, 4.0, 3.0, 2.0, 1.0, 1.9),
    "1b-q8_0": (1.3, 3.0, 3.0, 2.0, 1.0, 1.9),
    "1b-q4_0": (1.35, 3.0, 3.0, 2.0, 1.0, 1.9),
}
"""The ratio that is aimed at for each of `WORKLOADS`, by the name of the model file."""

LEAST_TIMED_S = 1.0
"""A core that was idle is slow for its first tenths of a second on some machines: both arms are to be past that."""

Arm = Callable[[Workload], float]
"""Runs a workload and returns tokens per second."""


@dataclass(slots=True)
class Cell:
    """The rates of one workload on one model, round by round."""

    model: str
    workload: Workload
    rates: dict[str, list[float]] = field(default_factory=lambda: {OURS: [], THEIRS: []})

    @property
    def ratios(self) -> list[float]:
        """Ours divided by theirs, of each round."""
        return [ours / theirs for ours, theirs in zip(self.rates[OURS], self.rates[THEIRS], strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def goal(self) -> float | None:
        """The ratio aimed at, where there is one for this model."""
        titles = [workload.title for workload in WORKLOADS]
        goals = GOALS.get(self.model)
        return goals[titles.index(self.workload.title)] if goals else None

    @property
    def is_missed(self) -> bool:
        return self.goal is not None and self.ratio < self.goal

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        medians = {arm: statistics.median(rates) for arm, rates in self.rates.items()}
        return {
            "model": self.model,
            "workload": self.workload.title,
            "rates": self.rates,
            "medians": medians,
            "ratios": self.ratios,
            "ratio": self.ratio,
            "goal": self.goal,
        }


def run_rounds(model: str, workloads: Sequence[Workload], arms: Mapping[str, Arm], rounds: int) -> list[Cell]:
    """Measure every workload in every round, one arm right after the other, and the first arm first in turn.

    Each arm runs each workload once unmeasured before the first round, and then as often as fills `LEAST_TIMED_S`.
    """
    cells = [Cell(model, workload) for workload in workloads]
    for arm in arms.values():
        for workload in workloads:
            arm(workload)
    for number in range(rounds):
        order = list(arms)[:: 1 if number % 2 == 0 else -1]
        for cell in cells:
            for name in order:
                cell.rates[name].append(_rate(arms[name], cell.workload))
    return cells


def _rate(arm: Arm, workload: Workload) -> float:
    n_runs, timed_s = 0, 0.0
    while timed_s < LEAST_TIMED_S:
        timed_s += workload.n_timed / arm(workload)
        n_runs += 1
    return n_runs * workload.n_timed / timed_s
