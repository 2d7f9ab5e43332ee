"""llama.cpp's own client on our workers with a tiny random model of each architecture, against its own servers."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.graph import element_type
from rpc_backend.host.sampling import log_probabilities
from rpc_backend.models import ARCHITECTURES
from rpc_backend.testing.gguf_writer import write_tiny_model
from rpc_backend.testing.golden import FLOOR

_LIMIT_S = 120
_N_CTX = 256
_WORST = 0.25
_CLEAR_LEAD = 0.3
_FORMS = {"flash": (True, "F16"), "plain": (False, "F16"), "flash with 8 bits": (True, "Q8_0")}


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_architectures(tmp_path, client, gateways, their_servers, name, form):
    """Logits agree as two ways of rounding do, and so do the tokens wherever the choice was clear.

    Of a mixture of experts some rows may differ by more: a router's near tie may fall to another expert. llama.cpp's
    own two ways of attention part there as well (2 of 300 rows even in F32), so clear is what leads with either.
    """
    flash, cache = _FORMS[form]
    # A row of a head must be whole blocks of the cache's type.
    model = write_tiny_model(tmp_path / "m.gguf", name, "Q8_0", n_embd=128 if cache == "Q8_0" else 64, n_ctx=_N_CTX)
    random = np.random.default_rng(5)
    prompt, then = (random.integers(0, 256, count).tolist() for count in (45, 12))
    theirs_loaded = client(model, their_servers)
    found = _logits(client(model, gateways.gateways), prompt, then, flash, cache)
    wanted = _logits(theirs_loaded, prompt, then, flash, cache)
    is_clear = _leads(wanted) > _CLEAR_LEAD
    if "moe" in name:
        other = _logits(theirs_loaded, prompt, then, not flash, "F16")
        is_clear &= (_leads(other) > _CLEAR_LEAD) & (other.argmax(1) == wanted.argmax(1))
    assert is_clear.any()
    np.testing.assert_array_equal(found.argmax(1)[is_clear], wanted.argmax(1)[is_clear])
    ours, theirs = (log_probabilities(rows).astype(float) for rows in (found, wanted))
    difference = np.where(theirs > FLOOR, np.abs(ours - theirs), 0).max(axis=1)
    assert np.median(difference) < _WORST
    assert "moe" in name or difference.max() < _WORST


def _logits(process, prompt, then, flash, cache):
    kind = element_type(cache).code
    answer = process.ask(_LIMIT_S, do="logits", tokens=prompt, then=then, flash=flash, cache=kind)
    return np.array(answer["rows"], np.float32)


def _leads(rows):
    best = np.sort(rows, axis=1)
    return best[:, -1] - best[:, -2]
