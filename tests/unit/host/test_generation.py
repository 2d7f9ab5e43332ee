"""The life of a generation, over a context that answers from a script."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.errors import ConfigError, ContextFullError
from rpc_backend.host.generation import Task, run_batch, stream_one
from rpc_backend.host.sampling import SamplerParams
from rpc_backend.host.tokenizer import Tokenizer
from rpc_backend.models import GgufFile
from rpc_backend.testing.gguf_writer import write_tiny_model

GREEDY = SamplerParams(temperature=0.0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.from_metadata(GgufFile.open(write_tiny_model(tmp_path_factory.mktemp("m") / "m.gguf")).metadata)


class ScriptedContext:
    """Says one token after the other, per sequence, and keeps what it was fed."""

    def __init__(self, scripts, n_vocab, n_ctx=64):
        self.scripts = [list(script) for script in scripts]
        self.n_seq = len(scripts)
        self.fed = [[] for _ in scripts]
        self.steps = 0
        self._n_vocab = n_vocab
        self._n_ctx = n_ctx

    def clear(self, sequence):
        self.fed[sequence].clear()

    def room(self, sequence):
        return self._n_ctx - len(self.fed[sequence])

    def prefill(self, sequence, tokens):
        if len(tokens) > self.room(sequence):
            raise ContextFullError("too long")
        self.fed[sequence] += tokens
        return self._next(sequence)

    def decode(self, tokens):
        self.steps += 1
        for sequence, token in tokens.items():
            self.fed[sequence].append(token)
        return {sequence: self._next(sequence) for sequence in tokens}

    def _next(self, sequence):
        logits = np.zeros(self._n_vocab, np.float32)
        logits[self.scripts[sequence].pop(0)] = 9
        return logits


def _task(tokenizer, text, max_tokens=8, stop=()):
    return Task.of(tokenizer, tokenizer.encode(text, add_special=False), max_tokens, GREEDY, stop)


def _run(tokenizer, answer, *, end=True, **options):
    script = tokenizer.encode(answer, add_special=False) + ([tokenizer.eos_id] if end else [])
    context = ScriptedContext([script], tokenizer.n_vocab, options.pop("n_ctx", 64))
    task = _task(tokenizer, "hi", **options)
    pieces = list(stream_one(context, task))
    return context, task.result(), pieces


def test_it_ends_at_the_end_token_and_leaves_it_out(tokenizer):
    _, result, pieces = _run(tokenizer, "yes")
    assert (result.text, result.stop_reason) == ("yes", "end")
    assert result.tokens == tokenizer.encode("yes", add_special=False)
    assert "".join(piece.text for piece in pieces) == "yes"


def test_every_token_but_the_last_is_fed_back(tokenizer):
    context, result, _ = _run(tokenizer, "abcdefgh", end=False, max_tokens=4)
    assert result.stop_reason == "length"
    assert context.fed[0] == tokenizer.encode("hi", add_special=False) + result.tokens[:-1]
    assert result.timings.decode_tokens == len(result.tokens) - 1


def test_no_tokens_asked_evaluates_nothing(tokenizer):
    context, result, pieces = _run(tokenizer, "yes", max_tokens=0)
    assert (result.tokens, pieces, context.fed) == ([], [], [[]])


def test_a_full_context_ends_it(tokenizer):
    _, result, _ = _run(tokenizer, "y" * 20, max_tokens=20, n_ctx=6)
    assert result.stop_reason == "length"
    assert len(result.tokens) == 5  # two tokens of prompt, four of answer fed, one more sampled


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [(["END"], "one ", "stop"), (["ENDING"], "one END", "end"), (["x", "ne"], "o", "stop"), ([""], "one END", "end")],
)
def test_a_stop_text_ends_it_and_is_left_out(tokenizer, stop, text, reason):
    _, result, pieces = _run(tokenizer, "one END", stop=stop, max_tokens=20)
    assert (result.text, result.stop_reason) == (text, reason)
    assert "".join(piece.text for piece in pieces) == text


def test_no_piece_shows_half_a_character(tokenizer):
    _, result, pieces = _run(tokenizer, "é€", max_tokens=20)
    assert result.text == "é€"
    assert [piece.text for piece in pieces if piece.text] == ["é", "€"]


def test_a_batch_advances_together_and_ends_one_by_one(tokenizer):
    scripts = [[*tokenizer.encode(text, add_special=False), tokenizer.eos_id] for text in ("a", "long", "xyz")]
    context = ScriptedContext(scripts, tokenizer.n_vocab)
    results = run_batch(context, [_task(tokenizer, prompt) for prompt in ("p", "qq", "r")])
    assert [result.text for result in results] == ["a", "long", "xyz"]
    assert context.steps == 4  # of the longest: its first token comes with the prompt


def test_more_prompts_than_sequences_are_refused(tokenizer):
    context = ScriptedContext([[1]], tokenizer.n_vocab)
    with pytest.raises(ContextFullError, match="2 prompts"):
        run_batch(context, [_task(tokenizer, "a"), _task(tokenizer, "b")])
    assert context.fed == [[]]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "told"), [([], 1, "empty"), ([5], -1, "-1"), ([100000], 1, "100000"), ([-1], 1, "-1")]
)
def test_a_task_that_cannot_be_is_refused(tokenizer, prompt, max_tokens, told):
    with pytest.raises(ConfigError, match=told):
        Task.of(tokenizer, prompt, max_tokens, GREEDY, ())
