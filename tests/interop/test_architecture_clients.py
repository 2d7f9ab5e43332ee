"""llama.cpp's own client on our workers with a tiny random model of each architecture, against its own servers."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.host.sampling import log_probabilities
from rpc_backend.models import ARCHITECTURES
from rpc_backend.testing.gguf_writer import write_tiny_model
from rpc_backend.testing.golden import FLOOR

_LIMIT_S = 120
_N_CTX = 256
_WORST = 0.25
_CLEAR_LEAD = 0.3


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "plain"])
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_architectures(tmp_path, client, gateways, their_servers, name, flash):
    """Logits agree as two ways of rounding do, and so do the tokens wherever the choice was clear."""
    model = write_tiny_model(tmp_path / "m.gguf", name, "Q8_0", n_ctx=_N_CTX)
    random = np.random.default_rng(5)
    prompt, then = (random.integers(0, 256, count).tolist() for count in (45, 12))
    rows = [_logits(client(model, servers), prompt, then, flash) for servers in (gateways.gateways, their_servers)]
    ours, theirs = (log_probabilities(row).astype(float) for row in rows)
    difference = np.where(theirs > FLOOR, np.abs(ours - theirs), 0).max(axis=1)
    assert np.median(difference) < _WORST
    if "moe" in name:  # a router's near tie may fall to another expert
        return
    best = np.sort(rows[1], axis=1)
    is_clear = best[:, -1] - best[:, -2] > _CLEAR_LEAD
    np.testing.assert_array_equal(rows[0].argmax(1)[is_clear], rows[1].argmax(1)[is_clear])
    assert difference.max() < _WORST


def _logits(process, prompt, then, flash):
    answer = process.ask(_LIMIT_S, do="logits", tokens=prompt, then=then, flash=flash)
    return np.array(answer["rows"], np.float32)
