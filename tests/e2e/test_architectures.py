"""Log-probabilities of a tiny random model of each architecture against what llama.cpp answered for the same file.

The answers come from tools/make_architecture_golden.py; the files are written anew, equal byte for byte.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rpc_backend.host import LLM
from rpc_backend.models import ARCHITECTURES
from rpc_backend.testing.gguf_writer import write_tiny_model
from rpc_backend.testing.golden import compare_whole, feed_at_once, feed_stepwise

GOLDEN = Path(__file__).parent.parent / "data" / "architectures"
LIMIT = 0.01
"""Keys and values are rounded to F16, which a last bit can tip; answers are rounded to four digits."""


def test_every_architecture_was_recorded():
    assert {path.name.removesuffix(".golden.json") for path in GOLDEN.iterdir()} == set(ARCHITECTURES)


@pytest.mark.parametrize("flash_attn", [True, False], ids=["flash", "plain"])
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_tiny_models_agree_with_llamacpp(tmp_path, name, flash_attn):
    model = write_tiny_model(tmp_path / f"{name}.gguf", name, n_ctx=256)
    with LLM(model, workers="none", n_ctx=128, ubatch=16, flash_attn=flash_attn) as llm:
        for feed in (feed_stepwise, feed_at_once):
            found = compare_whole(llm, GOLDEN / f"{name}.golden.json", feed)
            assert found.worst < LIMIT
            assert found.divergence < 1e-5
