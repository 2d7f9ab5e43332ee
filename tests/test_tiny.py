"""Every layer once, in seconds: a tiny model over one worker process against the same model in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rpc_backend import LLM, SamplerParams
from rpc_backend.testing.gguf_writer import write_tiny_model

GREEDY = SamplerParams(temperature=0.0)


def test_a_worker_gives_what_this_process_gives(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    with LLM(model, workers="none", device="reference", n_ctx=64) as here:
        expected = here.generate("abab", max_tokens=8, params=GREEDY)
        logits = here.logits(here.tokenize("abab"))
    with LLM(model, workers="local:1", device="reference", n_ctx=64) as there:
        stream = there.stream("abab", max_tokens=8, params=GREEDY)
        text = "".join(piece.text for piece in stream)
        np.testing.assert_array_equal(there.logits(there.tokenize("abab")), logits)
        (traffic,) = there.wire().values()
    assert (text, stream.result.tokens) == (expected.text, expected.tokens)
    assert traffic["commands"]["SUBMIT"] > 0
