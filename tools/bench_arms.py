"""The two arms of a comparison: this project and llama.cpp, each with a model loaded once for many workloads.

Belongs here: loading and running a workload. Must not be here: which workloads, and what is made of the rates
(`bench_cells`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import llamacpp
from bench_cells import OURS, THEIRS, Arm, Where, Workload
from rpc_backend.host import LLM
from rpc_backend.host.bench import measure

N_WORKERS = 2
PROCESS_THREADS = 2
PIPELINE_GROUPS = 2
UBATCH = {Where.WORKERS: 128, Where.PROCESS: 512}
_LOAD_LIMIT_S = 300.0
_MEASURE_LIMIT_S = 600.0


@contextmanager
def arms(
    model: Path, where: Where, workloads: Sequence[Workload], llama_python: str, *, backend_sampling: bool
) -> Iterator[dict[str, Arm]]:
    """Load a model into both arms.

    Raises:
        LlamaCppError: llama.cpp's arm failed, then or later.
        RpcBackendError: ours did.
    """
    with ExitStack() as stack:
        theirs = stack.enter_context(_llamacpp(model, where, llama_python))
        ours = stack.enter_context(_ours(model, where, workloads, backend_sampling))
        yield {OURS: ours, THEIRS: theirs}


@contextmanager
def _ours(model: Path, where: Where, workloads: Sequence[Workload], backend_sampling: bool) -> Iterator[Arm]:
    n_seq = max(workload.n_seqs for workload in workloads)
    n_ctx = max(workload.n_prompt + workload.n_decode for workload in workloads) + 1
    over_workers = where is Where.WORKERS
    with LLM(
        model,
        workers=f"local:{N_WORKERS}" if over_workers else "none",
        threads=1 if over_workers else PROCESS_THREADS,
        n_ctx=n_ctx,
        n_seq=n_seq,
        ubatch=UBATCH[where],
        pipeline_groups=min(PIPELINE_GROUPS, n_seq) if over_workers else 1,
        backend_sampling=backend_sampling,
    ) as llm:

        def run(workload: Workload) -> float:
            row = measure(llm, workload.n_prompt, workload.n_decode, workload.n_seqs).row
            return workload.rate(row.t_pp, row.t_tg)

        yield run


@contextmanager
def _llamacpp(model: Path, where: Where, python: str) -> Iterator[Arm]:
    with ExitStack() as stack:
        endpoints: list[str] = []
        threads = PROCESS_THREADS
        if where is Where.WORKERS:
            endpoints = stack.enter_context(llamacpp.servers(python, N_WORKERS, 1))
            threads = 1
        process = stack.enter_context(llamacpp.LlamaProcess(python, "talk"))
        process.ask(_LOAD_LIMIT_S, do="load", model=str(model), threads=threads, servers=endpoints)

        def run(workload: Workload) -> float:
            counts = {name: getattr(workload, name) for name in ("n_prompt", "n_decode", "n_seqs")}
            found = process.ask(_MEASURE_LIMIT_S, do="measure", ubatch=UBATCH[where], **counts)
            return workload.rate(found["prefill_s"], found["decode_s"])

        yield run
