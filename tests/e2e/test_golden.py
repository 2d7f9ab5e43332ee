"""Our log-probabilities against llama.cpp's own, model by model."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpc_backend.host import LLM
from rpc_backend.testing.golden import compare_top, compare_whole, feed_at_once, feed_stepwise

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
PLAIN = ("llama-f32", "llama-f16")
QUANTIZED = ("llama-q4_0", "llama-q4_1", "llama-q8_0", "llama-Q4_K_M", "qwen2-q8_0", "qwen3-q8_0")


@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "plain"])
@pytest.mark.parametrize("name", PLAIN + QUANTIZED)
def test_tiny_models_agree_with_llamacpp(name, flash_attn):
    with LLM(GOLDEN / f"{name}.gguf", workers="none", n_ctx=512, ubatch=64, flash_attn=flash_attn) as llm:
        for feed in (feed_stepwise, feed_at_once):
            found = compare_whole(llm, GOLDEN / f"{name}.golden.json", feed)
            if name in PLAIN:
                assert found.worst < 0.005
            else:
                assert found.worst < 0.12
                assert found.divergence < 0.0005


def test_the_demo_model_agrees_with_llamacpp(demo_model):
    with LLM(demo_model, workers="none", n_ctx=256) as llm:
        found = compare_top(llm, GOLDEN / "smollm2-135m-instruct-q4_1.json")
    assert found.tokenised_alike
    assert found.compared > 100
    assert found.differing == 0
    assert found.divergence < 0.005
