"""The state of one generation and its text."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.errors import ConfigError
from rpc_backend.host.generation import Job
from rpc_backend.host.sampling import SamplerParams
from rpc_backend.host.tokenizer import Tokenizer
from rpc_backend.models import GgufFile
from rpc_backend.testing.gguf_writer import write_tiny_model

GREEDY = SamplerParams(temperature=0.0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.from_metadata(GgufFile.open(write_tiny_model(tmp_path_factory.mktemp("m") / "m.gguf")).metadata)


def _run(tokenizer, answer, *, end=True, stop=()):
    job = Job.of(tokenizer, [1, 2], 64, GREEDY, stop)
    pieces = []
    for token in tokenizer.encode(answer, add_special=False) + ([tokenizer.eos_id] if end else []):
        logits = np.zeros(tokenizer.n_vocab, np.float32)
        logits[token] = 9
        job.accept(logits)
        pieces += job.read()
        if job.stop_reason:
            break
    return job, pieces


def test_it_ends_at_the_end_token_and_leaves_it_out(tokenizer):
    job, pieces = _run(tokenizer, "yes")
    result = job.result()
    assert (result.text, result.stop_reason) == ("yes", "end")
    assert result.tokens == tokenizer.encode("yes", add_special=False)
    assert "".join(piece.text for piece in pieces) == "yes"
    assert result.timings.decode_tokens == len(result.tokens) - 1


def test_end_tokens_can_be_ignored(tokenizer):
    job = Job.of(tokenizer, [1], 4, GREEDY, (), ignore_end=True)
    job.take(tokenizer.eos_id)
    assert job.stop_reason is None
    assert job.tokens == [tokenizer.eos_id]


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [(["END"], "one ", "stop"), (["ENDING"], "one END", "end"), (["x", "ne"], "o", "stop"), ([""], "one END", "end")],
)
def test_a_stop_text_ends_it_and_is_left_out(tokenizer, stop, text, reason):
    job, pieces = _run(tokenizer, "one END", stop=stop)
    assert (job.result().text, job.stop_reason) == (text, reason)
    assert "".join(piece.text for piece in pieces) == text


def test_text_held_back_for_a_stop_text_comes_at_the_end(tokenizer):
    job, pieces = _run(tokenizer, "one EN", end=False, stop=["END"])
    assert "".join(piece.text for piece in pieces) == "one "
    job.end_if_full(room=0)
    assert [piece.text for piece in job.read()] == ["EN"]
    assert (job.result().text, job.stop_reason) == ("one EN", "length")


def test_text_that_was_not_read_step_by_step_is_the_same(tokenizer):
    job = Job.of(tokenizer, [1], 64, GREEDY, ["END"])
    for token in tokenizer.encode("one ENDING", add_special=False):
        job.take(token)
    assert job.ends_by_text
    assert "".join(piece.text for piece in job.read()) == "one "
    assert (job.result().text, job.stop_reason) == ("one ", "stop")


def test_without_a_stop_text_the_end_does_not_depend_on_reading(tokenizer):
    job = Job.of(tokenizer, [1], 2, GREEDY, [""])
    assert not job.ends_by_text
    for token in tokenizer.encode("abc", add_special=False)[:2]:
        job.take(token)
    job.end_if_full(room=9)
    assert job.stop_reason == "length"
    assert [piece.token is None for piece in job.read()] == [False, False, True]


def test_no_piece_shows_half_a_character(tokenizer):
    job, pieces = _run(tokenizer, "é€")
    assert job.result().text == "é€"
    assert [piece.text for piece in pieces if piece.text] == ["é", "€"]


def test_the_token_limit_and_a_full_sequence_end_it(tokenizer):
    job = Job.of(tokenizer, [1], 2, GREEDY, ())
    job.take(5)
    job.end_if_full(room=1)
    assert job.stop_reason is None
    job.take(6)
    job.end_if_full(room=1)
    assert job.stop_reason == "length"
    full = Job.of(tokenizer, [1], 2, GREEDY, ())
    full.take(5)
    full.end_if_full(room=0)
    assert full.stop_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "told"), [([], 1, "empty"), ([5], -1, "-1"), ([100000], 1, "100000"), ([-1], 1, "-1")]
)
def test_a_job_that_cannot_be_is_refused(tokenizer, prompt, max_tokens, told):
    with pytest.raises(ConfigError, match=told):
        Job.of(tokenizer, prompt, max_tokens, GREEDY, ())
