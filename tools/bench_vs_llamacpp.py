#!/usr/bin/env python3
"""Compare this project with llama.cpp: the same model files, threads and split, alternately in one run.

    python tools/bench_vs_llamacpp.py --llama-python PATH [--quick] [--write] [MODEL ...]

`PATH` is an interpreter with `llama-cpp-python` built with its RPC backend
(CMAKE_ARGS="-DGGML_RPC=ON" pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36). A MODEL is a file
(`make_model.py` makes some) or `demo`. Tokens are random, caches F16. Ours also draws every token; llama.cpp only
computes the logits.

Belongs here: options, and the tables. Must not be here: workloads (`bench_cells`), running them (`bench_arms`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import bench_arms
import llamacpp
from bench_cells import LEAST_TIMED_S, OURS, THEIRS, WORKLOADS, Cell, Where, Workload, run_rounds
from measure_models import machine
from rpc_backend.errors import RpcBackendError
from rpc_backend.host.model_source import find_model
from tables import PAGE, section, write_part

PART = "bench_vs_llamacpp"
ROUNDS, QUICK_ROUNDS = 5, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, and write them where asked to."""
    options = _parser().parse_args(arguments)
    cells: list[Cell] = []
    try:
        for name in options.models:
            cells += _measured(name, options)
    except (llamacpp.LlamaCppError, RpcBackendError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([cell.as_dict() for cell in cells]))
    return 0


def _measured(name: str, options: argparse.Namespace) -> list[Cell]:
    """Measure one model; print its table, and write it at once, so that a run that ends early loses only the rest."""
    started = time.perf_counter()
    cells = compare(name, options)
    found = list(lines(cells, time.perf_counter() - started))
    if not options.json:
        print("\n".join([*found, ""]), flush=True)
    if options.write:
        write_part(PAGE, f"{PART} {cells[0].model}", found)
    return cells


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["demo"], metavar="MODEL", help="a file, or demo (the default)")
    parser.add_argument("--llama-python", required=True, metavar="PATH", help="interpreter with llama-cpp-python")
    parser.add_argument("--rounds", type=int, help=f"alternations (default {ROUNDS}, quick: {QUICK_ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and fewer tokens")
    parser.add_argument("--only", default="", metavar="TEXT", help="only workloads with this in their title")
    parser.add_argument("--host-sampling", action="store_true", help="ours gets logits back, as llama.cpp does")
    parser.add_argument("--json", action="store_true", help="print every rate as JSON")
    parser.add_argument("--write", action="store_true", help=f"write each model's table into {PAGE.name}")
    return parser


def compare(name: str, options: argparse.Namespace) -> list[Cell]:
    """Measure one model. Raises LlamaCppError or RpcBackendError."""
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    workloads = [each.shortened() if options.quick else each for each in WORKLOADS if options.only in each.title]
    path = find_model(name)
    cells: list[Cell] = []
    for where, group in itertools.groupby(workloads, key=lambda each: each.where):
        cells += _compare_one(name, path, where, list(group), rounds, options)
    return cells


def _compare_one(
    name: str, path: Path, where: Where, workloads: list[Workload], rounds: int, options: argparse.Namespace
) -> list[Cell]:
    with bench_arms.arms(
        path, where, workloads, options.llama_python, backend_sampling=not options.host_sampling
    ) as arms:
        cells = run_rounds(Path(name).stem, workloads, arms, rounds)
    for cell in cells:
        print(f"{cell.model}, {cell.workload.title}: {cell.ratio:.2f}", file=sys.stderr, flush=True)
    return cells


def lines(cells: Sequence[Cell], took_s: float) -> Iterator[str]:
    """Yield the table of one model line by line."""
    yield from section(f"Ours and llama.cpp, tokens per second: {cells[0].model}", _rows(cells))
    yield "The ratio is the median of the rounds' ratios, in brackets what is aimed at; rates are medians."
    yield f"In each round a workload is run until {LEAST_TIMED_S:g} s of it are timed."
    missed = [f"{cell.workload.title}: {cell.ratio:.2f} of {cell.goal:g}" for cell in cells if cell.is_missed]
    yield f"Below what is aimed at: {'; '.join(missed) or 'none'}."
    yield "Decode of several sequences counts the tokens of all. Ours decodes 8 and 32 sequences in two"
    yield "pipeline groups, and draws each token where the logits are; llama.cpp gets logits back and draws none."
    yield "Prefill runs in chunks of 128 over workers, 512 in process."
    yield f"Made by `python tools/bench_vs_llamacpp.py` in {took_s:.0f} s on {machine()};"
    yield f"load average at the end {os.getloadavg()[0]:.1f}."


def _rows(cells: Sequence[Cell]) -> Iterator[list[str]]:
    yield ["workload", "ours / llama.cpp", "ratios of the rounds", "ours", "llama.cpp"]
    for cell in cells:
        goal = "" if cell.goal is None else f" ({cell.goal:g})"
        spread = f"{min(cell.ratios):.2f} to {max(cell.ratios):.2f}"
        ours, theirs = (statistics.median(cell.rates[arm]) for arm in (OURS, THEIRS))
        yield [cell.workload.title, f"{cell.ratio:.2f}{goal}", spread, f"{ours:.1f}", f"{theirs:.1f}"]


if __name__ == "__main__":
    sys.exit(main())
