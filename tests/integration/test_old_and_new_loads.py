"""Loads between clients and workers of either way and of an older protocol: the same text, and who digests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rpc_backend.client import connect
from rpc_backend.host import LLM, SamplerParams
from rpc_backend.host.local_workers import LocalWorkers
from rpc_backend.protocol.commands import STATS
from rpc_backend.protocol.records import Empty
from rpc_backend.settings import Settings
from rpc_backend.testing.gguf_writer import write_tiny_model

CLIENTS = {"new": Settings(), "load-opt-0": Settings(load_opt=False), "minor-1": Settings(proto_minor=1)}
WORKERS = {"new": (Settings(), ()), "load-opt-0": (Settings(load_opt=False), ()),
           "minor-1": (Settings(), ("--proto-minor", "1"))}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def endpoints() -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        found = {}
        for name, (settings, options) in WORKERS.items():
            workers = LocalWorkers.start(1, backend="reference", settings=settings, options=options)
            stack.callback(workers.close)
            found[name] = str(workers.endpoints[0])
        yield found


def text(model, endpoint: str, settings: Settings) -> str:
    with LLM(model, workers=[endpoint], n_ctx=64, settings=settings) as llm:
        return llm.generate([1, 5, 9], max_tokens=12, params=SamplerParams(temperature=0.0)).text


@pytest.fixture(scope="module")
def expected(model) -> str:
    with LLM(model, workers="none", device="reference", n_ctx=64) as llm:
        return llm.generate([1, 5, 9], max_tokens=12, params=SamplerParams(temperature=0.0)).text


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("client", CLIENTS)
def test_every_combination_gives_the_same_text(model, endpoints, expected, client, worker):
    assert text(model, endpoints[worker], CLIENTS[client]) == expected


def test_no_worker_without_a_cache_was_asked_for_content(model, endpoints, expected):
    assert text(model, endpoints["new"], Settings()) == expected
    with connect(endpoints["new"]) as connection:
        commands = connection.call(STATS, Empty()).commands
    assert "SET_TENSOR" in commands
    assert "SET_TENSOR_HASH" not in commands


def test_both_sides_tell_where_the_time_of_a_load_went(model, capfd):
    settings = Settings(loadprof=True)
    with LLM(model, workers="local:2", device="reference", n_ctx=64, settings=settings) as llm:
        lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("zmq-rpc loadprof tcp://")]
        llm.generate([1, 2], max_tokens=2)
    assert len(lines) == 2
    for line in lines:
        assert " SET_TENSOR, " in line
        assert "digest 0.000 s, staging 0.000 s, wire " in line
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("zmq-rpc loadprof session 1: ")]
    assert len(told) == 2
