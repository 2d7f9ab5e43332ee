#!/usr/bin/env python3
"""Measure llama.cpp's own client on two of our workers and on two of its own servers, in turn, one thread each.

    python tools/measure_interop.py --llama-python /path/to/python             print it
    python tools/measure_interop.py --llama-python /path/to/python --write     write it into docs/measurements.md

Belongs here: this comparison. Must not be here: how llama.cpp is driven (`llamacpp`).
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import llamacpp
import measure_models
from rpc_backend.host.local_workers import LocalWorkers
from rpc_backend.host.model_source import find_model
from tables import PAGE, section, write_part

PROMPT_TOKENS, DECODE_TOKENS = 512, 64
_PARTS = {
    "prefill_s": (f"prefill of {PROMPT_TOKENS} tokens", PROMPT_TOKENS),
    "decode_s": (f"decode of {DECODE_TOKENS} tokens", DECODE_TOKENS),
}
_LIMIT_S = 300.0
Found = dict[str, list[float]]
"""Seconds of each round, by the name of what was timed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, then print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-python", required=True, metavar="PATH", help="an interpreter that has llama.cpp")
    parser.add_argument("--model", default="demo", help="a GGUF file, or demo")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured; medians are told")
    parser.add_argument("--write", action="store_true", help=f"write it into {PAGE.name}")
    options = parser.parse_args(arguments)
    ours, theirs = measure(options.llama_python, str(find_model(options.model)), options.rounds)
    found = list(lines(options.model, options.rounds, ours, theirs))
    if options.write:
        write_part(PAGE, "interop", found)
    else:
        print("\n".join(found))
    return 0


def measure(python: str, model: str, n_rounds: int) -> tuple[Found, Found]:
    """Time a client on our workers and one on its own servers, in turn; a first round of each does not count.

    Raises:
        LlamaCppError: llama.cpp could not be started, or failed.
    """
    with ExitStack() as stack:
        arms: list[tuple[llamacpp.LlamaProcess, Found]] = []
        for servers in (_start_gateways(stack), stack.enter_context(llamacpp.servers(python, 2, 1))):
            client = stack.enter_context(llamacpp.LlamaProcess(python, "talk"))
            client.ask(_LIMIT_S, do="load", model=model, threads=1, servers=servers)
            arms.append((client, {part: [] for part in _PARTS}))
        for number in range(n_rounds + 1):
            for client, found in arms:
                shape = {"n_prompt": PROMPT_TOKENS, "n_decode": DECODE_TOKENS, "n_seqs": 1, "ubatch": PROMPT_TOKENS}
                times = client.ask(_LIMIT_S, do="measure", **shape)
                for part in _PARTS:
                    found[part] += [times[part]] if number else []
        return arms[0][1], arms[1][1]


def lines(model: str, n_rounds: int, ours: Found, theirs: Found) -> Iterator[str]:
    """Yield the part line by line."""
    rows = [["", "our workers, t/s", "its servers, t/s", "times as fast (least to most)"]]
    for part, (name, n_tokens) in _PARTS.items():
        speeds = [f"{n_tokens / statistics.median(found[part]):.0f}" for found in (ours, theirs)]
        ratios = sorted(their / our for our, their in zip(ours[part], theirs[part], strict=True))
        rows.append([name, *speeds, f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"])
    yield from section("llama.cpp's client on our workers", rows)
    yield f"Made by `tools/measure_interop.py`: model {model}, two workers with gateways or two `ggml-rpc-server`s,"
    yield f"one thread each, in turn, medians of {n_rounds} rounds; {measure_models.machine()}."


def _start_gateways(stack: ExitStack) -> list[str]:
    """Start two workers and return where their gateways are, as llama.cpp writes it."""
    places: list[str] = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            places.append(f"127.0.0.1:{probe.getsockname()[1]}")
        stack.enter_context(LocalWorkers.start(1, threads=1, options=["--gateway", f"tcp://{places[-1]}"]))
    return places


if __name__ == "__main__":
    sys.exit(main())
