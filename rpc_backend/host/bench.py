"""Measures a loaded model: prefill and decode speed, and what crosses the wire per decode step.

Belongs here: the workload and its counts. Must not be here: printing, or opinions about the figures.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rpc_backend.errors import ConfigError
from rpc_backend.host.llm import LLM

_SEED = 1


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One workload: `npl` sequences of `npp` prompt tokens each, then `ntg` decode steps of all.

    Seconds and tokens per second: `t_pp`, `s_pp` until every sequence has its first token, `t_tg`, `s_tg` for the
    decode steps, `t`, `s` for both.
    """

    npp: int
    ntg: int
    npl: int
    t_pp: float
    s_pp: float
    t_tg: float
    s_tg: float
    t: float
    s: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the host and all workers exchanged per decode step of a workload; a step is one token of every sequence."""

    messages: dict[str, float]
    commands: dict[str, float]
    bytes_out: float
    bytes_in: float


@dataclass(frozen=True, slots=True)
class Bench:
    """A measured workload."""

    row: BenchRow
    per_step: Traffic

    def as_dict(self) -> dict[str, Any]:
        """Return the row and the traffic as plain data."""
        return {**asdict(self.row), "per_step": asdict(self.per_step)}


def run_bench(llm: LLM, npp: Sequence[int], ntg: Sequence[int], npl: Sequence[int]) -> Iterator[Bench]:
    """Measure every combination; one short run of each comes first, so that graphs are built and kernels compiled.

    Raises:
        ConfigError: a count below 1, or more sequences or tokens than the model was loaded for.
    """
    if min(*npp, *ntg, *npl) < 1:
        raise ConfigError("npp, ntg and npl must be at least 1")
    if max(npl) > llm.n_seq or max(npp) + max(ntg) > llm.n_ctx:
        raise ConfigError(f"{max(npl)} sequences of {max(npp) + max(ntg)} tokens do not fit {llm.n_seq} of {llm.n_ctx}")
    for n_prompt in npp:
        for n_decode in ntg:
            for n_seqs in npl:
                measure(llm, n_prompt, n_decode, n_seqs)
                yield measure(llm, n_prompt, n_decode, n_seqs)


def measure(llm: LLM, npp: int, ntg: int, npl: int) -> Bench:
    """Run one workload once; the first run of a shape also builds its graphs."""
    tokens = np.random.default_rng(_SEED).integers(0, llm.n_vocab, (npl, npp))
    engine = llm.engine(prefill_first=True)
    jobs = [llm.job(prompt.tolist(), max_tokens=ntg + 1, ignore_end=True) for prompt in tokens]
    started = time.perf_counter()
    for job in jobs:
        engine.add(job)
    while engine.is_prefilling:
        engine.advance()
    before = llm.wire()
    middle = time.perf_counter()
    engine.run()
    ended = time.perf_counter()
    t_pp, t_tg = middle - started, ended - middle
    n_pp, n_tg, whole = npl * npp, npl * ntg, ended - started
    row = BenchRow(npp, ntg, npl, t_pp, n_pp / t_pp, t_tg, n_tg / t_tg, whole, (n_pp + n_tg) / whole)
    return Bench(row, _per_step(before, llm.wire(), ntg))


def _per_step(before: Mapping[str, Any], after: Mapping[str, Any], n_steps: int) -> Traffic:
    messages = {name: (after[name]["messages"] - before[name]["messages"]) / n_steps for name in after}
    commands: dict[str, float] = {}
    for name in after:
        for command, count in after[name]["commands"].items():
            rise = (count - before[name]["commands"].get(command, 0)) / n_steps
            if rise:
                commands[command] = commands.get(command, 0.0) + rise
    bytes_out = sum(after[name]["bytes_out"] - before[name]["bytes_out"] for name in after) / n_steps
    bytes_in = sum(after[name]["bytes_in"] - before[name]["bytes_in"] for name in after) / n_steps
    return Traffic(messages, commands, bytes_out, bytes_in)
