"""Many workers, many runs, long runs: nothing hangs, differs or grows."""

from __future__ import annotations

import gc
import os
import signal
import time

import numpy as np
import psutil
import pytest

from rpc_backend.errors import WorkerLostError
from rpc_backend.host import LLM, SamplerParams
from rpc_backend.host.local_workers import LocalWorkers
from rpc_backend.testing.gguf_writer import write_tiny_model
from rpc_backend.testing.workers import WorkerProcess

GREEDY = SamplerParams(temperature=0.0)
MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Its output matrix is the embedding, so that decode steps run ahead of their tokens."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", n_layer=8, type="Q8_0", tied=True)


def test_eight_workers_give_equal_tokens_in_twenty_runs(model):
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10]]
    with LLM(model, workers="none", device="reference", n_ctx=64, n_seq=4) as llm:
        expected = [llm.generate(prompt, max_tokens=4, params=GREEDY).tokens for prompt in prompts]
    runs = []
    with LLM(model, workers="local:8", device="reference", n_ctx=64, n_seq=4, pipeline_groups=4) as llm:
        for _ in range(20):
            runs.append([result.tokens for result in llm.generate_batch(prompts, max_tokens=32, params=GREEDY)])
    assert all(run == runs[0] for run in runs)
    assert [tokens[: len(first)] for tokens, first in zip(runs[0], expected, strict=True)] == expected


@pytest.mark.parametrize("doomed", [0, 1])
def test_a_worker_that_dies_while_a_step_runs_ahead_ends_the_generation(model, doomed):
    with LLM(model, workers="local:2", device="reference", n_ctx=400, threads=1) as llm:
        assert llm.context.can_run_ahead
        assert llm.devices.local_workers is not None
        stream = iter(llm.stream([1, 2, 3], max_tokens=350, params=GREEDY))
        for _ in range(5):
            next(stream)
        os.kill(llm.devices.local_workers.workers[doomed].pid, signal.SIGKILL)
        started_s = time.monotonic()
        with pytest.raises(WorkerLostError):
            for _ in stream:
                pass
        assert time.monotonic() - started_s < 5


def test_an_embedding_that_does_not_fit_the_first_worker_stays_on_the_host(tmp_path):
    """A model with an output matrix of its own: its embedding goes to the first worker for steps to run ahead."""
    untied = write_tiny_model(tmp_path / "untied.gguf")
    found = []

    def generate(workers, **options):
        endpoints = [str(worker.endpoint) for worker in workers]
        with LLM(untied, workers=endpoints, n_ctx=64, split="layers:1,1", **options) as llm:
            found.append(llm.generate([1, 2, 3], max_tokens=20, params=GREEDY).tokens)
            return llm.layer_split, llm.context.can_run_ahead

    with WorkerProcess("reference") as first, WorkerProcess("reference") as second:
        ahead, _ = generate([first, second])
        plain, _ = generate([first, second], run_ahead=False)
        assert (ahead.input_device, plain.input_device) == (0, None)
        needed, more = plain.shares[0].needed_nbytes, ahead.shares[0].needed_nbytes
        with WorkerProcess("reference", mem_nbytes=(needed + more) // 2) as small:
            split, runs_ahead = generate([small, second])
    assert (split.input_device, runs_ahead) == (None, False)
    assert found[0] == found[1] == found[2]


def test_two_contexts_on_one_worker_do_not_see_each_other(model):
    tokens = np.arange(1, 41)
    with LocalWorkers.start(1, backend="reference", threads=1) as local:
        workers = [str(local.endpoints[0])]
        with LLM(model, workers=workers, n_ctx=64) as alone:
            expected = [alone.logits(row.tolist()) for row in (tokens, tokens[::-1])]
        with LLM(model, workers=workers, n_ctx=64) as first, LLM(model, workers=workers, n_ctx=64) as second:
            rows = [[first.context.prefill(0, [1])], [second.context.prefill(0, [40])]]
            for a, b in zip(tokens[1:].tolist(), tokens[::-1][1:].tolist(), strict=True):
                rows[0].append(first.context.decode({0: a})[0])
                rows[1].append(second.context.decode({0: b})[0])
    for got, want in zip(rows, expected, strict=True):
        np.testing.assert_allclose(np.array(got), want, atol=1e-3)


def test_two_thousand_steps_do_not_grow_either_side(model):
    with LLM(model, workers="local:2", n_ctx=32, n_seq=4, pipeline_groups=2, backend_sampling=True, threads=1) as llm:
        assert llm.devices.local_workers is not None
        processes = [psutil.Process()] + [psutil.Process(worker.pid) for worker in llm.devices.local_workers.workers]

        def steps(count):
            for _ in range(count // 20):
                llm.generate_batch([[1], [2], [3], [4]], max_tokens=21, params=GREEDY)
            gc.collect()
            return [process.memory_info().rss for process in processes]

        before = steps(400)
        after = steps(2000)
    assert all(end - start < 6 * MIB for start, end in zip(before, after, strict=True)), (before, after)
