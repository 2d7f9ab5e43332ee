#!/usr/bin/env python3
"""Measure how workers that share a machine get on: tokens per second of all of them against those of one alone.

    python tools/measure_sharing.py [--model demo|FILE] [--workers 2] [--threads 2] [--seconds 3] [--rounds 3] [--write]

Every process decodes one sequence with all its threads for the same span of time. The sum should stay near what one
alone does: threads that wait for each other must not keep cores from those that could work.

Belongs here: starting the processes, and the tables. Must not be here: decoding (`rpc_backend`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from rpc_backend.host import LLM
from rpc_backend.host.bench import measure
from tables import PAGE, section, write_part

_PROMPT, _STEPS = 16, 64
_LIMIT_S = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure by turns one process alone and all at once, then print or write the medians."""
    options = _parser().parse_args(arguments)
    if options.decode:
        return _decode(options)
    alone: list[float] = []
    together: list[float] = []
    for _ in range(options.rounds):
        alone.append(_speed(options, 1))
        together.append(_speed(options, options.workers))
    one, all_ = statistics.median(alone), statistics.median(together)
    rows = [
        ["processes", "threads of each", "tokens/s of all", "of one alone"],
        ["1", str(options.threads), f"{one:.1f}", "1.00"],
        [str(options.workers), str(options.threads), f"{all_:.1f}", f"{all_ / one:.2f}"],
    ]
    text = list(section("Workers that share a machine", rows))
    print("\n".join(text))
    if options.write:
        write_part(PAGE, "sharing", text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="a file, or demo (the default)")
    parser.add_argument("--workers", type=int, default=2, help="processes at once (default 2)")
    parser.add_argument("--threads", type=int, default=2, help="compute threads of each (default 2)")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long they decode (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts (default 3)")
    parser.add_argument("--decode", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    return parser


def _speed(options: argparse.Namespace, n_processes: int) -> float:
    """Return the tokens per second of so many processes together."""
    command = [sys.executable, __file__, "--model", options.model, "--threads", str(options.threads)]
    command += ["--seconds", str(options.seconds), "--decode"]
    processes = [
        subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(n_processes)
    ]
    watch = threading.Timer(_LIMIT_S, lambda: [process.kill() for process in processes])
    watch.start()
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # it has loaded the model
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate()[0] for process in processes]
    finally:
        watch.cancel()
        for process in processes:
            process.kill()
            process.wait()
    return sum(json.loads(answer) for answer in answers)


def _decode(options: argparse.Namespace) -> int:
    """Be one of the processes: load, say so, and once told to go decode and print the tokens per second."""
    where = {"workers": "none", "device": "numba", "threads": options.threads}
    with LLM(options.model, n_ctx=_PROMPT + _STEPS + 2, **where) as llm:
        measure(llm, _PROMPT, _STEPS, 1)
        print("ready", flush=True)
        sys.stdin.readline()
        end, count, spent = time.monotonic() + options.seconds, 0, 0.0
        while time.monotonic() < end:
            row = measure(llm, _PROMPT, _STEPS, 1).row
            count, spent = count + row.ntg, spent + row.t_tg
        print(count / spent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
