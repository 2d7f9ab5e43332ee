"""Measures steps that overlap: the wire per decode step, pipeline groups, prefill over workers.

Belongs here: tables that compare arms of one build, after those of the seed documents. Must not be here: limits, which
tests set. Every ratio is of two arms measured in turn in one run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from rpc_backend.host import LLM
from rpc_backend.host.bench import Bench, run_bench
from rpc_backend.settings import Settings
from tables import section

ROUNDS = 3
N_STEPS = 32
N_PROMPT = 64
ARMS = {
    "step by step (ZMQ_RPC_NO_ASYNC_COPY=1)": Settings(no_async_copy=True),
    "through the host (ZMQ_RPC_P2P=0)": Settings(p2p=False),
    "direct": Settings(),
}


def lines() -> Iterator[str]:
    """Yield the tables line by line."""
    yield f"The tables below are of {N_PROMPT} prompt tokens and {N_STEPS} decode steps on workers of one thread each."
    yield "A step is one token of every sequence; counts are of the decode steps only."
    yield ""
    yield from section("Commands and bytes per decode step, two workers", _traffic())
    yield "`host` sampling brings the logits back (4 bytes for each of 49152 tokens and sequence), `backend` sampling"
    yield "token ids. SUBMIT is answered; SUBMIT_ONWARD, SET_TENSOR and GRAPH_COMPUTE are not."
    yield ""
    yield from section("Decode with one and two pipeline groups, two workers", _groups())
    yield f"Medians of {ROUNDS} rounds, both arms in each round; the ratio is the median of the rounds' ratios."
    yield ""
    yield from section("Prefill of 2048 tokens in chunks of 128", _prefill())
    yield f"Medians of {ROUNDS} rounds, both arms in each round."


def _traffic() -> Iterator[list[str]]:
    yield ["arm", "sampling", "sequences", "groups", "messages", "commands", "bytes out", "bytes in", "t/s"]
    for name, settings in ARMS.items():
        for backend_sampling in (False, True):
            for n_seqs in (8, 32):
                for groups in (1, 2):
                    result = _bench(n_seqs, groups, backend_sampling, settings)
                    step = result.per_step
                    commands = ", ".join(f"{command} {count:.2f}" for command, count in sorted(step.commands.items()))
                    yield [
                        name,
                        "backend" if backend_sampling else "host",
                        str(n_seqs),
                        str(groups),
                        f"{sum(step.messages.values()):.2f}",
                        commands,
                        f"{step.bytes_out:.0f}",
                        f"{step.bytes_in:.0f}",
                        f"{result.row.s_tg:.0f}",
                    ]


def _bench(n_seqs: int, groups: int, backend_sampling: bool, settings: Settings) -> Bench:
    options = {"pipeline_groups": groups, "backend_sampling": backend_sampling, "settings": settings}
    n_ctx = N_PROMPT + N_STEPS + 1
    with LLM("demo", workers="local:2", threads=1, n_ctx=n_ctx, n_seq=n_seqs, ubatch=N_PROMPT, **options) as llm:
        (result,) = run_bench(llm, [N_PROMPT], [N_STEPS], [n_seqs])
    return result


def _groups() -> Iterator[list[str]]:
    yield ["sequences", "sampling", "1 group, t/s", "2 groups, t/s", "ratio"]
    for n_seqs in (8, 32):
        for backend_sampling in (False, True):
            rates: dict[int, list[float]] = {1: [], 2: []}
            for _ in range(ROUNDS):
                for groups, found in rates.items():
                    found.append(_bench(n_seqs, groups, backend_sampling, Settings()).row.s_tg)
            yield [str(n_seqs), "backend" if backend_sampling else "host", *_compared(rates[1], rates[2])]


def _prefill() -> Iterator[list[str]]:
    yield ["local:1, t/s", "local:2, t/s", "ratio"]
    rates: dict[str, list[float]] = {"local:1": [], "local:2": []}
    for _ in range(ROUNDS):
        for workers, found in rates.items():
            with LLM("demo", workers=workers, threads=1, n_ctx=2050, ubatch=128) as llm:
                (result,) = run_bench(llm, [2048], [1], [1])
            found.append(result.row.s_pp)
    yield _compared(rates["local:1"], rates["local:2"])


def _compared(before: list[float], after: list[float]) -> list[str]:
    ratio = statistics.median(b / a for a, b in zip(before, after, strict=True))
    return [f"{statistics.median(before):.0f}", f"{statistics.median(after):.0f}", f"{ratio:.2f}"]
