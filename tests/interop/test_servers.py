"""Our host on llama.cpp's own servers, against our own workers."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from rpc_backend.errors import WorkerLostError
from rpc_backend.host import LLM, SamplerParams

CLEAR_LEAD = 0.3
TOKENS = [504, 3575, 282, 4649, 314, 7042, 30, 198, 198, 504, 1797, 1918, 553, 253, 2155, 282, 4723, 216, 35, 34, 33]


def logits(model, workers, flash, cache):
    with LLM(model, workers=workers, n_ctx=128, flash_attn=flash, kv_type=cache) as llm:
        return llm.logits(TOKENS)


@pytest.mark.parametrize(("flash", "cache", "limit"), [(True, "F16", 0.01), (False, "F16", 0.01), (True, "Q8_0", 0.02)])
def test_the_demo_model(their_servers, demo_model, flash, cache, limit):
    """Limits: with a cache of 8 bits either side differs from itself with F16 by 0.007 to 0.009."""
    wanted = logits(demo_model, "local:2", flash, cache)
    found = logits(demo_model, [f"ggml://{place}" for place in their_servers], flash, cache)
    best = np.sort(wanted, axis=1)
    is_clear = best[:, -1] - best[:, -2] > 2 * CLEAR_LEAD
    assert is_clear.sum() >= 10
    np.testing.assert_array_equal(found.argmax(1)[is_clear], wanted.argmax(1)[is_clear])
    spread = wanted - wanted.mean(axis=1, keepdims=True)
    assert np.square(found - wanted).mean() / np.square(spread).mean() < limit


def test_one_generates_as_on_our_workers(their_servers, demo_model):
    texts = []
    for workers in ("local:2", [f"ggml://{place}" for place in their_servers]):
        with LLM(demo_model, workers=workers, n_ctx=128) as llm:
            texts.append(
                llm.generate("The capital of France is", max_tokens=5, params=SamplerParams(temperature=0)).text
            )
    assert texts[0] == texts[1]
    assert "Paris" in texts[0]


def test_a_server_that_is_killed(llama_python, demo_model):
    import llamacpp

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with llamacpp.LlamaProcess(llama_python, "serve", f"127.0.0.1:{port}", "1") as server:
        server.wait_listening(port)
        with LLM(demo_model, workers=f"ggml://127.0.0.1:{port}", n_ctx=128) as llm:
            assert llm.logits(TOKENS[:4]).shape[0] == 4
            server.kill()
            with pytest.raises(WorkerLostError, match=f"ggml-rpc server ggml://127.0.0.1:{port} hung up"):
                llm.logits(TOKENS)
