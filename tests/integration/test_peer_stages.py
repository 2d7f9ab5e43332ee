"""A model over three, four and five workers: what one decode step sends, and the death of a stage in the middle."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rpc_backend.errors import WorkerLostError
from rpc_backend.host import LLM, SamplerParams
from rpc_backend.host.bench import run_bench
from rpc_backend.settings import Settings
from rpc_backend.testing.gguf_writer import write_tiny_model
from rpc_backend.testing.workers import WorkerProcess

GREEDY = SamplerParams(temperature=0.0)
N_STEPS = 12
HEARTBEAT_S = 1.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", n_layer=10)


@pytest.fixture(scope="module")
def endpoints() -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(WorkerProcess("reference", heartbeat_ms=5000)).endpoint for _ in range(5)]


@pytest.mark.parametrize("n_stages", [3, 4, 5])
def test_a_step_is_one_message_to_each_stage_and_one_back(model, endpoints, n_stages):
    with LLM(model, workers=endpoints[:n_stages], n_ctx=64, n_seq=2) as llm:
        (result,) = run_bench(llm, [4], [N_STEPS], [2])
    commands = result.per_step.commands
    n_steps = round(commands["SUBMIT"] * N_STEPS)  # one may have begun with the prompt's last chunk
    assert N_STEPS - 1 <= n_steps <= N_STEPS
    assert round(commands["SUBMIT_ONWARD"] * N_STEPS) == n_steps * (n_stages - 1)
    others = sum(count for name, count in commands.items() if not name.startswith("SUBMIT"))
    assert others * N_STEPS <= 2, "now and then a sign of life"


@pytest.mark.parametrize("n_stages", [3, 5])
def test_workers_of_minor_3_copy_to_each_other(model, endpoints, n_stages):
    tokens = []
    for settings in (Settings(), Settings(proto_minor=3), Settings(proto_minor=3, p2p=False)):
        with LLM(model, workers=endpoints[:n_stages], n_ctx=64, n_seq=3, pipeline_groups=3, settings=settings) as llm:
            results = llm.generate_batch([[1, 2, 3], [4, 5], [6]], max_tokens=8, params=GREEDY)
            tokens.append([result.tokens for result in results])
            (bench,) = run_bench(llm, [4], [N_STEPS], [3])
            commands = bench.per_step.commands
        if settings.proto_minor == 3:
            n_steps = round(commands["GET_TENSORS"] * N_STEPS / (1 if settings.p2p else n_stages))
            assert 3 * N_STEPS - 3 <= n_steps <= 3 * N_STEPS
            n_copies = n_steps * (n_stages - 1) if settings.p2p else 0
            assert abs(commands.get("COPY_TENSOR_TO", 0) * N_STEPS - n_copies) < 3 * n_stages
    assert tokens[0] == tokens[1] == tokens[2]


@pytest.mark.parametrize("minor", [3, 4])
@pytest.mark.parametrize("p2p", [True, False])
def test_a_killed_stage_in_the_middle_is_named_in_time(model, minor, p2p):
    settings = Settings(heartbeat_timeout_ms=int(1000 * HEARTBEAT_S), proto_minor=minor, p2p=p2p)
    with ExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess("reference")) for _ in range(3)]
        llm = LLM(model, workers=[worker.endpoint for worker in workers], n_ctx=512, settings=settings)
        stack.callback(llm.close)
        ended: list[tuple[float, BaseException]] = []
        pieces: list[object] = []

        def decode() -> None:
            try:
                engine = llm.engine()
                engine.add(llm.job([1, 2, 3], max_tokens=500, params=GREEDY, ignore_end=True))
                while not engine.is_idle:
                    pieces.extend(engine.advance())
            except WorkerLostError as error:
                ended.append((time.monotonic(), error))

        thread = threading.Thread(target=decode)
        thread.start()
        deadline_s = time.monotonic() + 20
        while len(pieces) < 5 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        workers[1].kill()
        killed_s = time.monotonic()
        thread.join(20)
        assert not thread.is_alive(), "the decode hangs"
        assert len(ended) == 1, f"{len(pieces)} pieces came and no error"
        assert ended[0][0] - killed_s < HEARTBEAT_S + 1.0
        assert workers[1].endpoint in str(ended[0][1])
