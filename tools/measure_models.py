"""Measures agreement with llama.cpp's recorded answers, and speed and start-up of the demo model.

Belongs here: one function per table of `measure.py`'s page. Must not be here: limits, which the tests set. Machines
are noisy: every speed is the median of several runs.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from rpc_backend import settings
from rpc_backend.host import LLM, SamplerParams
from rpc_backend.testing.golden import compare_top, compare_whole, feed_at_once, feed_stepwise
from tables import section

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "data" / "golden"
TINY = ("llama-f32", "llama-f16", "llama-q4_0", "llama-q4_1", "llama-q8_0", "llama-Q4_K_M", "qwen2-q8_0", "qwen3-q8_0")
WORKERS = ("none", "local:1", "local:2", "local:3")
PROMPT = "The capital of France is"
PREFILL_TOKENS = 512
DECODE_TOKENS = 48
ROUNDS = 5


def lines() -> Iterator[str]:
    """Yield the tables line by line."""
    yield from section("Agreement with llama.cpp, tiny models", _tiny_rows())
    yield "`step by step` feeds the prompt, then each forced token in a step of its own; `at once` all as one prompt."
    yield "`worst` is the largest difference of a log-probability above -12 over the whole vocabulary, `KL` the mean"
    yield "Kullback-Leibler divergence. Limits: 0.005 for F32 and F16; 0.12 and 0.0005 for quantised models."
    yield ""
    yield from section("Agreement with llama.cpp, demo model (135M, Q4_1)", _demo_rows())
    yield "Limits: tokenised alike, no differing best token, divergence 0.005."
    yield ""
    yield from section("Speed of the demo model, one thread per worker", _speed_rows())
    yield "`tokens` says whether the greedy text of 48 tokens is that of the process without workers."
    yield ""
    yield from section("Start of `zmq-rpc run --model demo --workers local:2`", _start_rows())
    yield "From the start of the command to its end, for one token."
    yield "The first compiles kernels into an empty cache folder."


def _tiny_rows() -> Iterator[list[str]]:
    yield ["model", "attention", "worst, step by step", "KL", "worst, at once", "KL"]
    for name in TINY:
        for flash_attn in (True, False):
            with LLM(GOLDEN / f"{name}.gguf", workers="none", n_ctx=512, ubatch=64, flash_attn=flash_attn) as llm:
                row = [name, "flash" if flash_attn else "plain"]
                for feed in (feed_stepwise, feed_at_once):
                    found = compare_whole(llm, GOLDEN / f"{name}.golden.json", feed)
                    row += [f"{found.worst:.4f}", f"{found.divergence:.1e}"]
                yield row


def _demo_rows() -> Iterator[list[str]]:
    yield ["tokenised alike", "clear best tokens", "differing", "mean KL over the top 20"]
    with LLM("demo", workers="none", n_ctx=256) as llm:
        found = compare_top(llm, GOLDEN / "smollm2-135m-instruct-q4_1.json")
    alike = "yes" if found.tokenised_alike else "no"
    yield [alike, str(found.compared), str(found.differing), f"{found.divergence:.4f}"]


def _speed_rows() -> Iterator[list[str]]:
    yield ["workers", "load s", f"prefill {PREFILL_TOKENS}, t/s", "decode, t/s", "tokens"]
    greedy = SamplerParams(temperature=0.0)
    expected: list[int] | None = None
    for workers in WORKERS:
        with LLM("demo", workers=workers, threads=1, n_ctx=1024) as llm:
            prompt = (llm.tokenize(PROMPT) * PREFILL_TOKENS)[:PREFILL_TOKENS]
            llm.generate(prompt, max_tokens=1, params=greedy)
            prefill = [llm.generate(prompt, max_tokens=1, params=greedy).timings.prompt_tps for _ in range(ROUNDS)]
            runs = [llm.generate(PROMPT, max_tokens=DECODE_TOKENS, params=greedy) for _ in range(ROUNDS)]
        expected = expected or runs[0].tokens
        same = all(run.tokens == expected for run in runs)
        decode = statistics.median(run.timings.decode_tps for run in runs)
        load = f"{llm.load_s:.2f}"
        yield [workers, load, f"{statistics.median(prefill):.0f}", f"{decode:.0f}", "same" if same else "DIFFERENT"]


def _start_rows() -> Iterator[list[str]]:
    yield ["start", "seconds", "load s"]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("first", "second", "third"):
            started = time.perf_counter()
            load = _run_once(folder)
            yield [name, f"{time.perf_counter() - started:.2f}", f"{load:.2f}"]


def _run_once(cache_dir: str) -> float:
    command = [sys.executable, "-m", "rpc_backend.cli.main", "run", "--model", "demo", "--workers", "local:2", "--json"]
    command += ["--prompt", PROMPT, "--max-tokens", "1", "--temperature", "0"]
    environment = settings.child_environment({"ZMQ_RPC_CACHE_DIR": cache_dir})
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=600)
    return json.loads(done.stdout)["timings"]["load_s"]


def machine() -> str:
    """Return what the figures were measured on."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine()
    )
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "pyzmq"))
    return f"{os.cpu_count()} cores of {cpu}, Python {platform.python_version()}, {versions}"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
