"""Sequences and steps, on the reference backend in this process."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.errors import ComputeError, ContextFullError
from rpc_backend.host import LLM
from rpc_backend.host.context import ContextLimits
from rpc_backend.testing.gguf_writer import write_tiny_model

N_CTX = 40
TOKENS = [int(token) for token in np.random.default_rng(1).integers(0, 256, N_CTX + 8)]
CLOSE = {"rtol": 0, "atol": 1e-3}  # a rounding of the F16 cache may flip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def context(model):
    with LLM(model, workers="none", device="reference", n_ctx=N_CTX, n_seq=3, ubatch=16) as llm:
        yield llm.context


@pytest.fixture(autouse=True)
def _clear(context):
    for sequence in range(context.n_seq):
        context.clear(sequence)


def test_chunks_do_not_change_the_logits(model, context):
    whole = context.logits(0, TOKENS[:37])
    with LLM(model, workers="none", device="reference", n_ctx=N_CTX, ubatch=5) as other:
        np.testing.assert_allclose(other.logits(TOKENS[:37]), whole, **CLOSE)


def test_prefill_and_decode_agree_with_one_prompt(context):
    whole = context.logits(0, TOKENS[:24])
    np.testing.assert_allclose(context.prefill(1, TOKENS[:21]), whole[20], **CLOSE)
    for position in range(21, 24):
        row = context.decode({1: TOKENS[position]})[1]
        np.testing.assert_allclose(row, whole[position], **CLOSE)


def test_sequences_of_a_step_are_independent_and_idle_ones_keep_their_tokens(context):
    whole = context.logits(0, TOKENS[:12])
    context.clear(0)
    for sequence in range(3):
        context.prefill(sequence, TOKENS[: 5 + sequence])
    rows = context.decode({0: TOKENS[5], 2: TOKENS[7]})
    assert set(rows) == {0, 2}
    np.testing.assert_allclose(rows[0], whole[5], **CLOSE)
    np.testing.assert_allclose(rows[2], whole[7], **CLOSE)
    np.testing.assert_allclose(context.decode({1: TOKENS[6]})[1], whole[6], **CLOSE)


def test_an_idle_full_sequence_is_not_harmed(context):
    last = context.logits(1, TOKENS[:N_CTX])[-1]
    context.clear(1)
    context.prefill(1, TOKENS[: N_CTX - 1])
    context.prefill(0, TOKENS[:3])
    context.prefill(2, TOKENS[:3])
    np.testing.assert_allclose(context.decode({1: TOKENS[N_CTX - 1]})[1], last, **CLOSE)
    assert context.room(1) == 0
    rows = context.decode({0: TOKENS[3], 2: TOKENS[3]})
    np.testing.assert_array_equal(rows[0], rows[2])


def test_a_prompt_that_does_not_fit_changes_nothing(context):
    context.prefill(0, TOKENS[:10])
    with pytest.raises(ContextFullError, match="31 more tokens do not fit in a context of 40 that holds 10"):
        context.prefill(0, TOKENS[:31])
    assert context.room(0) == 30
    context.prefill(0, TOKENS[:30])
    with pytest.raises(ContextFullError, match="raise the context size"):
        context.decode({0: 1})


@pytest.mark.parametrize("n_ctx", [1, 31, 32, 33, 2048])
def test_there_is_always_a_cell_beside_the_tokens(n_ctx):
    assert ContextLimits(n_ctx, 1, 1).n_cells > n_ctx


def test_a_failed_chunk_fails_the_prefill(context, monkeypatch):
    begin = context.start_append

    class Broken:
        def wait(self):
            raise ComputeError("the device broke")

    monkeypatch.setattr(
        context, "start_append", lambda sequence, tokens, n: begin(sequence, tokens, n) if n else Broken()
    )
    with pytest.raises(ComputeError, match="the device broke"):
        context.prefill(0, TOKENS[:20])


def test_a_step_that_was_foreseen_gives_the_same(context):
    for sequence, length in ((0, 5), (1, 9)):
        context.prefill(sequence, TOKENS[:length])
    span = range(0, 2)
    plain = context.start_decode({0: TOKENS[5], 1: TOKENS[9]}, None, span).logits()
    for sequence, length in ((0, 5), (1, 9)):
        context.clear(sequence)
        context.prefill(sequence, TOKENS[:length])
    context.foresee_decode([0, 1], span)
    np.testing.assert_array_equal(context.start_decode({0: TOKENS[5], 1: TOKENS[9]}, None, span).logits(), plain)


def test_a_step_other_than_foreseen_is_what_was_asked(context):
    whole = context.logits(0, TOKENS[:6])
    context.clear(0)
    context.prefill(0, TOKENS[:7])
    context.prefill(1, TOKENS[:3])
    context.foresee_decode([0, 1], range(0, 2))
    context.clear(0)
    context.prefill(0, TOKENS[:5])
    np.testing.assert_allclose(context.start_decode({0: TOKENS[5]}, None, range(0, 2)).logits()[0], whole[5], **CLOSE)
    context.foresee_decode([0, 1], range(0, 2))
    context.start_decode({1: TOKENS[3]}, None, range(0, 2)).wait()
    rows = context.start_decode({0: TOKENS[6]}, None, range(0, 2)).logits()
    np.testing.assert_allclose(rows[0], context.logits(2, TOKENS[:7])[6], **CLOSE)


def test_a_full_sequence_is_not_foreseen(context):
    context.prefill(0, TOKENS[:N_CTX])
    context.foresee_decode([0], range(0, 1))
    with pytest.raises(ContextFullError):
        context.start_decode({0: 1}, None, range(0, 1))


def test_one_device_takes_prompts_in_chunks_of_ubatch(context):
    assert context.n_stages == 1
    assert context.chunk_width(30) == 16
