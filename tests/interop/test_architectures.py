"""A tiny random model of each architecture in our host and in the real llama.cpp: logits must agree.

What is recorded in tests/data/architectures covers F32 files and llama.cpp without flash attention; here come the
other forms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpc_backend.graph import element_type
from rpc_backend.host import LLM
from rpc_backend.host.sampling import log_probabilities
from rpc_backend.models import ARCHITECTURES
from rpc_backend.testing.gguf_writer import write_tiny_model
from rpc_backend.testing.golden import FLOOR

_LIMIT_S = 60
_GOLDEN = Path(__file__).parents[1] / "data" / "golden"
_N_CTX = 256
_FORMS: dict[str, dict[str, Any]] = {
    # Both engines round activations to 8 bits in their own way, and llama.cpp's flash attention works in F16.
    "F32": {"worst": 0.01, "divergence": 1e-5},
    "F32 flash": {"worst": 0.05, "divergence": 1e-4},
    "Q8_0": {"worst": 0.25, "divergence": 2e-3},
}
_PROJECTIONS = ("blk.0.attn_output.bias", "blk.1.attn_output.bias")
_OPTIONAL = {"optional": True, "tensors": {"output.bias": None}}
_OPTIONAL_PHI3 = {"optional": True, "tensors": dict.fromkeys(("output.bias", *_PROJECTIONS))}
"""All optional tensors but those that llama.cpp refuses."""

_SPECIAL = {
    "gpt-oss in MXFP4": ("gpt-oss", {"type": "MXFP4"}),
    "llama with all optional tensors": ("llama", _OPTIONAL),
    "granite with all optional tensors": ("granite", _OPTIONAL),
    "phi3 with two sets of factors, short": ("phi3", {**_OPTIONAL_PHI3, "metadata": {"n_ctx_orig": 512}}),
    "phi3 with two sets of factors, long": ("phi3", {**_OPTIONAL_PHI3, "metadata": {"n_ctx_orig": 64}}),
    "gpt-oss with YaRN": ("gpt-oss", {"metadata": {"yarn": 4.0}}),
    "olmo2 with windows and YaRN": ("olmo2", {"metadata": {"yarn": 4.0, "window": 24}}),
    "gemma3 with linear scaling": ("gemma3", {"metadata": {"linear": 8.0}}),
    "qwen3moe with one expert of each token": ("qwen3moe", {"metadata": {"used": 1}}),
}


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_architectures_agree(tmp_path, llama_python, name, form):
    kind, _, flash = form.partition(" ")
    model = write_tiny_model(tmp_path / "m.gguf", name, kind, n_ctx=_N_CTX)
    difference, divergence = _compare(llama_python, model, flash=bool(flash))
    assert np.median(difference) < _FORMS[form]["worst"]
    if "moe" not in name:  # a router's near tie may fall to another expert: not every row must agree
        assert difference.max() < _FORMS[form]["worst"]
        assert divergence < _FORMS[form]["divergence"]


@pytest.mark.parametrize("what", _SPECIAL)
def test_special_forms_agree(tmp_path, llama_python, what):
    name, options = _SPECIAL[what]
    metadata = _metadata(name, options.get("metadata", {}))
    model = write_tiny_model(tmp_path / "m.gguf", name, n_ctx=_N_CTX, **{**options, "metadata": metadata})
    difference, divergence = _compare(llama_python, model, flash=False)
    limits = _FORMS["Q8_0" if "type" in options else "F32"]
    assert difference.max() < limits["worst"]
    assert divergence < limits["divergence"]


@pytest.mark.parametrize("cache", ["Q8_0", "BF16", "F32"])
@pytest.mark.parametrize("name", ["llama-f32", "qwen3-q8_0"])
def test_caches_of_other_types_agree(llama_python, name, cache):
    difference, divergence = _compare(llama_python, _GOLDEN / f"{name}.gguf", flash=True, cache=cache)
    limits = _FORMS["Q8_0" if "q8_0" in name or cache != "F32" else "F32 flash"]
    assert difference.max() < limits["worst"]
    assert divergence < limits["divergence"]


def _metadata(name: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the keys that short names stand for."""
    known = {
        "n_ctx_orig": lambda n: {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": n},
        "yarn": lambda factor: {
            "rope.scaling.type": "yarn", "rope.scaling.factor": factor, "rope.scaling.original_context_length": 64,
        },
        "linear": lambda factor: {"rope.scaling.type": "linear", "rope.scaling.factor": factor},
        "window": lambda size: {"attention.sliding_window": size, "attention.sliding_window_pattern": [True, False]},
        "used": lambda count: {"expert_used_count": count},
    }  # fmt: skip
    keys = {key: value for short, given in wanted.items() for key, value in known[short](given).items()}
    return {f"{name}.{key}": value for key, value in keys.items()}


def _compare(python: str, model: Any, *, flash: bool, cache: str = "F16") -> tuple[Any, float]:
    """Return the greatest difference of a log-probability per row, and the mean divergence."""
    from llamacpp import LlamaProcess

    random = np.random.default_rng(5)
    prompt, then = (random.integers(0, 256, count).tolist() for count in (45, 6))
    with LlamaProcess(python, "talk") as process:
        process.ask(_LIMIT_S, do="load", model=str(model), threads=1)
        rows = process.ask(
            _LIMIT_S, do="logits", tokens=prompt, then=then, flash=flash, cache=element_type(cache).code
        )["rows"]
    theirs = log_probabilities(np.array(rows, np.float32)).astype(float)
    with LLM(model, workers="none", n_ctx=_N_CTX - 32, ubatch=16, flash_attn=flash, kv_type=cache) as llm:
        ours = log_probabilities(llm.logits([*prompt, *then[:-1]])[len(prompt) - 1 :]).astype(float)
    difference = np.where(theirs > FLOOR, np.abs(ours - theirs), 0).max(axis=1)
    return difference, float((np.exp(theirs) * (theirs - ours)).sum(axis=1).mean())
