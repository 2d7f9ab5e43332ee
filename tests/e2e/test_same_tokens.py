"""The same tokens, however many workers the model is split over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rpc_backend.host import LLM, SamplerParams
from rpc_backend.host.sampling import log_probabilities

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
PROMPT = "The capital of France is"
GREEDY = SamplerParams(temperature=0.0)


def _tokens(model, **options):
    with LLM(model, n_ctx=256, threads=1, **options) as llm:
        return llm.generate(PROMPT, max_tokens=48, params=GREEDY).tokens


@pytest.fixture(scope="module")
def expected(demo_model):
    return _tokens(demo_model, workers="none")


@pytest.mark.parametrize("workers", ["local:1", "local:2", "local:3"])
def test_workers_give_the_tokens_of_one_process(demo_model, expected, workers):
    assert _tokens(demo_model, workers=workers) == expected


@pytest.mark.parametrize("types", [("Q8_0", "Q8_0"), ("BF16", "Q8_0"), ("Q8_0", "F16")], ids="-".join)
def test_workers_give_the_tokens_of_one_process_with_any_cache(types):
    options = {"cache_type_k": types[0], "cache_type_v": types[1], "n_seq": 2}
    expected = _tokens(GOLDEN / "llama-q8_0.gguf", workers="none", **options)
    assert _tokens(GOLDEN / "llama-q8_0.gguf", workers="local:2", **options) == expected


@pytest.mark.parametrize(
    "options",
    [{"split": "layers:29,1"}, {"ubatch": 2}, {"n_seq": 3}],
    ids=lambda options: next(iter(options)),
)
def test_options_do_not_change_the_tokens(demo_model, expected, options):
    assert _tokens(demo_model, workers="local:2", **options) == expected


@pytest.mark.parametrize(
    "options", [{"kv_type": "F32"}, {"kv_type": "Q8_0"}, {"flash_attn": False}], ids=["F32", "Q8_0", "plain"]
)
def test_other_arithmetic_gives_nearly_the_same_logits(demo_model, options):
    rows = []
    for chosen in ({}, options):
        with LLM(demo_model, n_ctx=256, workers="none", **chosen) as llm:
            rows.append(log_probabilities(llm.logits(llm.tokenize(PROMPT))))
    divergence = (np.exp(rows[0]) * (rows[0] - rows[1])).sum(axis=1)
    assert divergence.mean() < 0.01  # activations rounded to bytes differ by chance: 0.004 is usual


def test_sequences_of_a_batch_do_not_disturb_each_other(demo_model, expected):
    prompts = [PROMPT, "Water boils at", PROMPT, "def fibonacci(n):"]
    with LLM(demo_model, n_ctx=256, n_seq=4, threads=1, workers="local:2") as llm:
        alone = [llm.generate(prompt, max_tokens=48, params=GREEDY).tokens for prompt in prompts]
        together = [result.tokens for result in llm.generate_batch(prompts, max_tokens=48, params=GREEDY)]
    assert together == alone
    assert together[0] == together[2] == expected


def test_a_seed_repeats_a_sampled_text(demo_model):
    with LLM(demo_model, n_ctx=256, threads=1, workers="local:2") as llm:
        first, second, other = (
            llm.generate(PROMPT, max_tokens=16, params=SamplerParams(temperature=1.0, seed=seed)).tokens
            for seed in (7, 7, 8)
        )
    assert first == second != other
