"""The driver of llama.cpp as a real process, with a package of that name that only does what the test needs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
FAKE = """
import ctypes, shutil, sys, time
from types import SimpleNamespace

class QuantizeParams(ctypes.Structure):
    _fields_ = [("ftype", ctypes.c_int)]

LLAMA_FTYPE_MOSTLY_Q4_K_M = 15
contexts = []
N_VOCAB = 10

def llama_backend_init(): print("noise on standard output")
def llama_batch_init(n, embd, seqs):
    return SimpleNamespace(
        token=[0] * n, pos=[0] * n, logits=[0] * n, n_seq_id=[0] * n, seq_id=[[0] for _ in range(n)], n_tokens=0)
def llama_model_quantize_default_params(): return QuantizeParams()
def llama_model_quantize(source, target, params):
    shutil.copy(source, target)
    return params._obj.ftype - 15 if b"good" in source else 3
def llama_model_default_params(): return SimpleNamespace()
def llama_model_load_from_file(path, params):
    if b"slow" in path: time.sleep(60)
    if b"crash" in path: sys.exit("it crashed")
    return path if b"good" in path else None
def llama_context_default_params(): return SimpleNamespace()
def llama_init_from_model(model, params):
    contexts.append((params.n_ctx, params.n_seq_max, params.n_ubatch, params.n_threads))
    return SimpleNamespace(cells=0)
def llama_get_memory(context): return context
def llama_memory_clear(memory, data): memory.cells = 0
def llama_model_get_vocab(model): return model
def llama_vocab_n_tokens(vocab): return N_VOCAB
def llama_decode(context, batch):
    context.cells += batch.n_tokens
    context.last = batch.token[batch.n_tokens - 1]
    return 0 if context.cells < 4000 else 1
def llama_synchronize(context): time.sleep(0.001)
def llama_get_logits_ith(context, i): return [float(token == (context.last + 1) % N_VOCAB) for token in range(N_VOCAB)]
"""


@pytest.fixture
def llamacpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, started processes of which find the package above."""
    package = tmp_path / "packages" / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "llama_cpp.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("llamacpp")


def test_requests_are_answered_one_by_one(llamacpp: ModuleType) -> None:
    with llamacpp.LlamaProcess(sys.executable, "talk") as process:
        assert process.ask(20, do="load", model="good", threads=2)["load_s"] >= 0
        shape = {"n_prompt": 100, "n_decode": 5, "n_seqs": 3, "ubatch": 64}
        for _ in range(2):
            found = process.ask(20, do="measure", **shape)
            assert found["prefill_s"] >= 0.001
            assert found["decode_s"] >= 0.005
        assert process.ask(20, do="greedy", tokens=[4, 7], n_decode=4) == {"tokens": [8, 9, 0, 1]}


@pytest.mark.parametrize(
    ("request_fields", "message"),
    [
        ({"do": "load", "model": "bad", "threads": 1}, "RuntimeError: llama.cpp did not load bad"),
        ({"do": "fly"}, "no attribute 'do_fly'"),
        ({"do": "load", "model": "good", "threads": 1, "servers": ["127.0.0.1:1"]}, "OSError: .*libggml-base.so"),
        ({"do": "load", "model": "crash", "threads": 1}, "llama.cpp ended: .*it crashed"),
    ],
)
def test_what_goes_wrong_there_is_an_error_here(
    llamacpp: ModuleType, request_fields: dict[str, object], message: str
) -> None:
    with (
        llamacpp.LlamaProcess(sys.executable, "talk") as process,
        pytest.raises(llamacpp.LlamaCppError, match=f"(?s){message}"),
    ):
        process.ask(20, **request_fields)


def test_a_failed_step_is_an_error_and_the_next_request_is_answered(llamacpp: ModuleType) -> None:
    with llamacpp.LlamaProcess(sys.executable, "talk") as process:
        process.ask(20, do="load", model="good", threads=1)
        with pytest.raises(llamacpp.LlamaCppError, match="llama_decode returned 1"):
            process.ask(20, do="measure", n_prompt=2500, n_decode=1, n_seqs=2, ubatch=64)
        assert process.ask(20, do="greedy", tokens=[1], n_decode=1) == {"tokens": [2]}


def test_an_answer_that_takes_too_long_ends_the_process(llamacpp: ModuleType) -> None:
    with llamacpp.LlamaProcess(sys.executable, "talk") as process:
        with pytest.raises(llamacpp.LlamaCppError, match="did not load within 1 s"):
            process.ask(1, do="load", model="slow", threads=1)
        with pytest.raises(llamacpp.LlamaCppError, match=r"llama\.cpp ended"):
            process.ask(20, do="load", model="good", threads=1)


def test_quantizing_is_one_call(llamacpp: ModuleType, tmp_path: Path) -> None:
    source, target = tmp_path / "good", tmp_path / "out"
    source.write_bytes(b"model")
    request = {"source": str(source), "target": str(target), "type": "Q4_K_M"}
    assert llamacpp.call(sys.executable, "quantize", request, 20) == {}
    assert target.read_bytes() == b"model"
    with pytest.raises(llamacpp.LlamaCppError, match="no file type Q9"):
        llamacpp.call(sys.executable, "quantize", request | {"type": "Q9"}, 20)


def test_servers_that_cannot_start_say_why(llamacpp: ModuleType) -> None:
    with (
        pytest.raises(llamacpp.LlamaCppError, match=r"(?s)server ended: .*libggml\.so"),
        llamacpp.servers(sys.executable, 2, 1),
    ):
        pytest.fail("there is nothing to serve")
