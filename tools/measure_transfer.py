#!/usr/bin/env python3
"""Measure tensors that go from worker to worker against those that go through the host; write that part of the page.

    python tools/measure_transfer.py            print it
    python tools/measure_transfer.py --write    write it into docs/measurements.md

Belongs here: the accounting of seed 001, with one arm per protocol minor and way. Must not be here: limits, which tests
set. Every arm must give the same tokens, or nothing is written.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rpc_backend.host import LLM, SamplerParams
from rpc_backend.host.bench import Traffic, measure
from rpc_backend.host.local_workers import LocalWorkers
from rpc_backend.settings import Settings
from tables import PAGE, section, write_part

ROUNDS = 5
N_STEPS = 32
N_PROMPT = 16
N_SEQS = 8
N_GROUPS = 3
N_TOKENS = 24
FEWEST_WORKERS, MOST_WORKERS = 3, 5
MINORS = (3, 4, 5)
ARMS = {
    f"minor {minor}, {way}": Settings(proto_minor=minor, p2p=way == "direct")
    for minor in MINORS
    for way in ("hub", "direct")
}
PROMPTS = ("The capital of France is", "Water boils at", "def fibonacci(n):", "Once upon a time,")
GREEDY = SamplerParams(temperature=0.0)
_COLUMNS = ("GET_TENSORS", "SET_TENSOR", "COPY_TENSOR_TO", "SUBMIT", "SUBMIT_ONWARD")


class Workers:
    """Running workers, of which an arm uses the first few, and a model. All arms must give the same tokens."""

    def __init__(self, endpoints: Sequence[str], model: str) -> None:
        self._endpoints = list(endpoints)
        self._model = model
        self._tokens: list[list[int]] | None = None

    @contextmanager
    def open(self, count: int, arm: str, groups: int) -> Iterator[LLM]:
        """Load the model over `count` workers.

        Raises:
            ValueError: it gives other tokens than the first arm did.
        """
        with LLM(
            self._model,
            workers=self._endpoints[:count],
            n_ctx=N_PROMPT + N_STEPS + 1,
            n_seq=N_SEQS,
            pipeline_groups=groups,
            backend_sampling=True,
            settings=ARMS[arm],
        ) as llm:
            results = llm.generate_batch(list(PROMPTS), max_tokens=N_TOKENS, params=GREEDY)
            tokens = [result.tokens for result in results]
            self._tokens = self._tokens or tokens
            if tokens != self._tokens:
                raise ValueError(f"{arm} over {count} workers in {groups} groups gives other tokens than the first arm")
            yield llm


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, then print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", metavar="PATH|demo")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of the comparison of speed")
    parser.add_argument("--write", action="store_true", help=f"write it into {PAGE.name}")
    options = parser.parse_args(arguments)
    found = list(lines(options.model, options.rounds))
    if options.write:
        write_part(PAGE, "transfer", found)
    else:
        print("\n".join(found))
    return 0


def lines(model: str = "demo", rounds: int = ROUNDS) -> Iterator[str]:
    """Yield the part line by line."""
    with LocalWorkers.start(MOST_WORKERS, threads=1) as local:
        workers = Workers([str(endpoint) for endpoint in local.endpoints], model)
        steps = {
            (arm, count): _step(workers, count, arm)
            for arm in ARMS
            for count in range(FEWEST_WORKERS, MOST_WORKERS + 1)
        }
        yield f"Made by `python tools/measure_transfer.py --write`: {N_SEQS} sequences, {N_PROMPT} prompt tokens and"
        yield f"{N_STEPS} decode steps, sampling on the worker, workers of one thread each. `hub` is ZMQ_RPC_P2P=0. A"
        yield "step is one token of every sequence; counts and bytes are of what passes the host, headers included."
        yield ""
        yield from section("Worker to worker: commands and bytes per decode step, three workers", _traffic(steps))
        yield "Minor 3 has COPY_TENSOR_TO, which the host sends and waits for; with minor 4 results go onward"
        yield "under tickets, and with minor 5 drawn tokens too, for the step after. All arms gave the same tokens,"
        yield "over each count of workers, with one group and with three."
        yield ""
        yield from section("Worker to worker: bytes per decode step through the host", _growth(steps))
        yield from section(f"Worker to worker: {N_GROUPS} groups over three workers", _speed(workers, rounds))
        yield f"Medians of {rounds} rounds, both arms in each, the first one changing from round to round; the ratio is"
        yield "the median of the rounds' ratios."


def _step(workers: Workers, count: int, arm: str) -> Traffic:
    with workers.open(count, arm, 1) as llm:
        measure(llm, N_PROMPT, N_STEPS, N_SEQS)  # graphs are sent whole the first time
        return measure(llm, N_PROMPT, N_STEPS, N_SEQS).per_step


def _traffic(steps: Mapping[tuple[str, int], Traffic]) -> Iterator[list[str]]:
    yield ["arm", *_COLUMNS, "other commands", "bytes out", "bytes in"]
    for arm in ARMS:
        step = steps[arm, FEWEST_WORKERS]
        others = sum(count for command, count in step.commands.items() if command not in _COLUMNS)
        counts = [f"{step.commands.get(command, 0):.2f}" for command in _COLUMNS]
        yield [arm, *counts, f"{others:.2f}", f"{step.bytes_out:.0f}", f"{step.bytes_in:.0f}"]


def _growth(steps: Mapping[tuple[str, int], Traffic]) -> Iterator[list[str]]:
    counts = range(FEWEST_WORKERS, MOST_WORKERS + 1)
    yield ["arm", *(f"{count} workers" for count in counts)]
    for arm in ARMS:
        found = [steps[arm, count] for count in counts]
        yield [arm, *(f"{step.bytes_out + step.bytes_in:.0f}" for step in found)]


def _speed(workers: Workers, rounds: int) -> Iterator[list[str]]:
    yield ["minor", "hub, t/s", "direct, t/s", "direct / hub", "lowest", "highest"]
    for minor in MINORS:
        hub, direct = _rates(workers, f"minor {minor}, hub", f"minor {minor}, direct", rounds)
        ratios = [after / before for before, after in zip(hub, direct, strict=True)]
        medians = [f"{statistics.median(each):.0f}" for each in (hub, direct)]
        spread = [f"{each:.2f}" for each in (statistics.median(ratios), min(ratios), max(ratios))]
        yield [str(minor), *medians, *spread]


def _rates(workers: Workers, first: str, second: str, rounds: int) -> tuple[list[float], list[float]]:
    """Measure two arms that are loaded at the same time, in turn; the first measurement of each does not count."""
    rates: tuple[list[float], list[float]] = ([], [])
    with workers.open(3, first, N_GROUPS) as one, workers.open(3, second, N_GROUPS) as two:
        arms = list(zip((one, two), rates, strict=True))
        for number in range(rounds + 1):
            for llm, found in arms if number % 2 else reversed(arms):
                rate = measure(llm, N_PROMPT, N_STEPS, N_SEQS).row.s_tg
                if number:
                    found.append(rate)
    return rates


if __name__ == "__main__":
    sys.exit(main())
