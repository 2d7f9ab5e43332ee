"""llama.cpp's own client loads a model twice: what crosses the wire the second time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rpc_backend.client import connect
from rpc_backend.host import LLM
from rpc_backend.protocol import commands, records
from rpc_backend.settings import Settings
from rpc_backend.testing.gguf_writer import write_tiny_model

LIMIT_S = 60
PROMPT = [1, 5, 9, 30, 7]
THEN = [3, 4, 5]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Matrices above the 10 MiB that llama.cpp asks for by their hash, and little else."""
    folder = tmp_path_factory.mktemp("models")
    return write_tiny_model(folder / "m.gguf", type="Q8_0", n_layer=2, n_embd=256, n_ff=49_152, head=64)


def stats(gateways) -> list[records.Stats]:
    answers = []
    for endpoint in gateways.workers:
        with connect(endpoint, Settings()) as connection:
            answers.append(connection.call(commands.STATS, records.Empty()))
    return answers


def uploaded_nbytes(gateways) -> int:
    return sum(answer.commands.get("SET_TENSOR", [0, 0, 0])[1] for answer in stats(gateways))


def load(client, model, gateways) -> tuple[list[int], int]:
    """Return the tokens that a client chooses, and the bytes that it uploaded for it."""
    before = uploaded_nbytes(gateways)
    process = client(model, gateways.gateways)
    tokens = process.ask(LIMIT_S, do="choices", tokens=PROMPT, then=THEN)["tokens"]
    process.close()
    return tokens, uploaded_nbytes(gateways) - before


def wait_for_names(folder: Path, count: int) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not (folder / "names").exists() or len((folder / "names").read_text().splitlines()) < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_second_load_moves_less_than_a_tenth(serve, client, model, tmp_path):
    cache = tmp_path / "cache"
    gateways = serve("--cache", cache)
    first, first_nbytes = load(client, model, gateways)
    assert first_nbytes > 0.9 * model.stat().st_size
    wait_for_names(cache, 6)
    second, second_nbytes = load(client, model, gateways)
    assert second == first
    assert second_nbytes < first_nbytes / 10

    # What lies in the cache is also there for other workers, and for our own host.
    others = serve("--cache", cache)
    third, third_nbytes = load(client, model, others)
    assert third == first
    assert third_nbytes < first_nbytes / 10
    with LLM(model, workers=others.workers, n_ctx=128) as llm:
        assert llm.logits(PROMPT).shape[0] == len(PROMPT)
    assert uploaded_nbytes(others) < first_nbytes / 5


def test_what_our_host_uploaded_is_there_for_llama_cpp(serve, client, model, tmp_path):
    cache = tmp_path / "cache"
    gateways = serve("--cache", cache)
    with LLM(model, workers=gateways.workers, n_ctx=128) as llm:
        llm.logits(PROMPT)
    wait_for_names(cache, 6)
    tokens, nbytes = load(client, model, gateways)
    assert nbytes < model.stat().st_size / 10
    assert tokens == load(client, model, serve())[0]


def test_model_files_of_the_worker(serve, client, model, tmp_path):
    """Even the first load needs no uploads once they are named."""
    gateways = serve("--models", model.parent, "--cache", tmp_path)
    wait_for_names(tmp_path, 6)
    tokens, nbytes = load(client, model, gateways)
    assert nbytes < model.stat().st_size / 10
    assert sum(answer.weights["model_hits"] for answer in stats(gateways)) == 6
    assert tokens == load(client, model, serve())[0]
