"""Log-probabilities of a tiny random model of each architecture against what llama.cpp answered for the same file.

The answers come from tools/make_architecture_golden.py; the files are written anew, equal byte for byte.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rpc_backend.host import LLM, SamplerParams
from rpc_backend.host.local_workers import LocalWorkers
from rpc_backend.models import ARCHITECTURES, GgufFile, load_model
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


@pytest.fixture(scope="module")
def workers():
    with LocalWorkers.start(2, threads=1) as local:
        yield [str(endpoint) for endpoint in local.endpoints]


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_running_ahead_changes_no_token(tmp_path, workers, name, tied):
    """Three sequences that end at different steps, and then others in their places; half of it drawn."""
    model = write_tiny_model(tmp_path / f"{name}.gguf", name, n_ctx=256, tied=tied)
    is_tied = load_model(GgufFile.open(model)).is_tied  # some architectures always are
    params = [SamplerParams(temperature=0.0), SamplerParams(temperature=1.0, top_k=30, seed=5)]
    found = []
    for run_ahead in (False, True):
        with LLM(model, workers=workers, n_ctx=48, n_seq=3, ubatch=16, run_ahead=run_ahead) as llm:
            assert llm.context.can_run_ahead is run_ahead
            assert llm.layer_split.input_device == (0 if run_ahead and not is_tied else None)
            engine = llm.engine()
            jobs = [
                llm.job([7 + n, 30, 5 * n + 2], max_tokens=6 + 3 * n, params=params[n % 2], ignore_end=n > 1)
                for n in range(7)
            ]
            for job in jobs:
                engine.add(job)
            engine.run()
            found.append([(job.tokens, job.stop_reason) for job in jobs])
    assert found[0] == found[1]
