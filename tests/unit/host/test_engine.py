"""Who runs next, over a context that answers from a script."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.errors import ComputeError, ConfigError, ContextFullError
from rpc_backend.host.engine import Engine
from rpc_backend.host.generation import Job
from rpc_backend.host.sampling import SamplerParams
from rpc_backend.host.tokenizer import Tokenizer
from rpc_backend.models import GgufFile
from rpc_backend.testing.gguf_writer import write_tiny_model

GREEDY = SamplerParams(temperature=0.0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.from_metadata(GgufFile.open(write_tiny_model(tmp_path_factory.mktemp("m") / "m.gguf")).metadata)


class ScriptedStep:
    def __init__(self, context, rows, error=None):
        self._context, self._rows, self._error = context, rows, error
        self.waited = False

    def is_done_within(self, timeout_s):
        return self.waited

    def wait(self):
        if not self.waited:
            self.waited = True
            self._context.under_way -= 1
        if self._error:
            raise self._error

    def logits(self):
        self.wait()
        logits = np.zeros((len(self._rows), self._context.n_vocab), np.float32)
        for row, token in enumerate(self._rows):
            logits[row, token] = 9
        return logits


class ScriptedContext:
    """Answers each prompt with its own text, whatever the order; keeps a log of steps."""

    def __init__(self, tokenizer, n_seq, *, n_ctx=64, ubatch=4):
        self.n_seq, self.n_ctx, self.n_stages, self.n_vocab = n_seq, n_ctx, 1, tokenizer.n_vocab
        self.ubatch = ubatch
        self.asked_widths = []
        self.foreseen = []
        self.fed = [[] for _ in range(n_seq)]
        self.log = []
        self.answers = {}
        self.under_way = self.most_under_way = 0
        self.fail_at = None

    def foresee_decode(self, sequences, span):
        self.foreseen.append((set(sequences), span))

    def chunk_width(self, n_tokens):
        self.asked_widths.append(n_tokens)
        return self.ubatch

    def clear(self, sequence):
        self.fed[sequence].clear()

    def room(self, sequence):
        return self.n_ctx - len(self.fed[sequence])

    def need_capacity(self, n_tokens):
        if n_tokens > self.n_ctx:
            raise ContextFullError(f"{n_tokens} do not fit {self.n_ctx}")

    def start_append(self, sequence, tokens, n_outputs, sampling=None):
        self.fed[sequence] += tokens
        return self._step(("append", sequence, len(tokens)), [self._next(sequence)] if n_outputs else [])

    def start_decode(self, tokens, sampling=None, span=None):
        for sequence, token in tokens.items():
            self.fed[sequence].append(token)
        rows = [self._next(sequence) if sequence in tokens else 0 for sequence in span]
        return self._step(("decode", *sorted(tokens)), rows)

    def _step(self, entry, rows):
        self.log.append(entry)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        error = ComputeError("the device broke") if self.fail_at == len(self.log) else None
        return ScriptedStep(self, rows, error)

    def _next(self, sequence):
        fed = self.fed[sequence]
        for prompt, answer in self.answers.items():
            if tuple(fed[: len(prompt)]) == prompt and fed[len(prompt) :] == answer[: len(fed) - len(prompt)]:
                return answer[len(fed) - len(prompt)]
        raise AssertionError(f"sequence {sequence} was fed {fed}")


def _jobs(tokenizer, context, pairs, max_tokens=24):
    jobs = []
    for prompt, answer in pairs:
        tokens = tokenizer.encode(prompt, add_special=False)
        context.answers[tuple(tokens)] = [*tokenizer.encode(answer, add_special=False), tokenizer.eos_id]
        jobs.append(Job.of(tokenizer, tokens, max_tokens, GREEDY, ()))
    return jobs


PAIRS = [("one", "first"), ("two!", "b"), ("three", "the third answer"), ("4", "xy"), ("five five", "5"), ("6", "six")]


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("prefill_first", [False, True])
@pytest.mark.parametrize("n_seq", [3, 4, 8])
def test_every_generation_gets_its_answer_whatever_the_order(tokenizer, groups, prefill_first, n_seq):
    context = ScriptedContext(tokenizer, n_seq)
    engine = Engine(context, groups, prefill_first=prefill_first)
    jobs = _jobs(tokenizer, context, PAIRS)
    for job in jobs:
        engine.add(job)
    engine.run()
    assert [job.result().text for job in jobs] == [answer for _, answer in PAIRS]
    assert all(job.stop_reason == "end" for job in jobs)
    assert engine.is_idle
    assert context.under_way == 0


def test_prompts_go_in_chunks_and_only_the_last_has_an_output(tokenizer):
    context = ScriptedContext(tokenizer, 1)
    engine = Engine(context)
    (job,) = _jobs(tokenizer, context, [("0123456789", "ok")])
    engine.add(job)
    engine.run()
    assert context.log[:3] == [("append", 0, 4), ("append", 0, 4), ("append", 0, 2)]
    assert job.result().timings.prompt_tokens == 10


def test_the_width_of_chunks_is_asked_for_all_tokens_that_wait(tokenizer):
    context = ScriptedContext(tokenizer, 2)
    engine = Engine(context)
    jobs = _jobs(tokenizer, context, [("0123456789", "a"), ("abcdef", "b"), ("xy", "c")])
    for job in jobs:
        engine.add(job)
    engine.run()
    n_all = sum(len(job.prompt) for job in jobs)
    assert context.asked_widths == [n_all, n_all, len(jobs[2].prompt)]


def test_more_stages_have_more_chunks_under_way(tokenizer):
    context = ScriptedContext(tokenizer, 1, ubatch=1)
    context.n_stages = 3
    engine = Engine(context)
    (job,) = _jobs(tokenizer, context, [("0123456789", "ok")])
    engine.add(job)
    engine.advance()
    assert context.most_under_way == 6
    engine.run()


def test_the_next_step_is_laid_out_while_a_decode_step_is_under_way(tokenizer):
    context = ScriptedContext(tokenizer, 4)
    engine = Engine(context, 2)
    for job in _jobs(tokenizer, context, [("a", "xyz"), ("b", "xyz")]):
        engine.add(job)
    engine.run()
    assert context.foreseen
    assert all(sequences <= set(span) for sequences, span in context.foreseen)
    assert len(context.foreseen) == sum(entry[0] == "decode" for entry in context.log)


def test_each_group_has_one_decode_step_under_way(tokenizer):
    context = ScriptedContext(tokenizer, 4)
    engine = Engine(context, 2, prefill_first=True)
    for job in _jobs(tokenizer, context, [(str(i), "abcdefgh") for i in range(4)]):
        engine.add(job)
    while engine.is_prefilling:
        engine.advance()
    context.most_under_way = 0
    engine.run()
    decodes = [entry for entry in context.log if entry[0] == "decode"]
    assert set(decodes) == {("decode", 0, 1), ("decode", 2, 3)}
    assert context.most_under_way == 2


def test_the_next_step_is_under_way_before_the_text_is_made(tokenizer):
    context = ScriptedContext(tokenizer, 1)
    engine = Engine(context)
    (job,) = _jobs(tokenizer, context, [("a", "0123456789")])
    engine.add(job)
    engine.advance()
    feed, steps_at_read = job.decoder.feed, []

    def watched(token):
        steps_at_read.append((context.under_way, len(job.tokens)))
        return feed(token)

    job.decoder.feed = watched
    engine.advance()
    assert steps_at_read == [(1, 2)]


def test_a_stop_text_is_looked_for_before_the_next_step(tokenizer):
    context = ScriptedContext(tokenizer, 1)
    engine = Engine(context)
    (job,) = _jobs(tokenizer, context, [("a", "01STOP23456789")])
    job.stop = Job.of(tokenizer, [1], 1, GREEDY, ["STOP"]).stop
    engine.add(job)
    engine.run()
    assert job.result().text == "01"
    assert len(context.fed[0]) == len(job.history) - 1


def test_a_late_generation_joins_while_others_decode(tokenizer):
    context = ScriptedContext(tokenizer, 2)
    engine = Engine(context)
    first, second = _jobs(tokenizer, context, [("a", "0123456789"), ("b", "xyz")])
    engine.add(first)
    for _ in range(4):
        engine.advance()
    engine.add(second)
    engine.run()
    assert (first.result().text, second.result().text) == ("0123456789", "xyz")
    assert ("decode", 0, 1) in context.log


def test_a_cancelled_generation_frees_its_sequence(tokenizer):
    context = ScriptedContext(tokenizer, 1)
    engine = Engine(context)
    first, second = _jobs(tokenizer, context, [("a", "0123456789"), ("b", "xyz")])
    engine.add(first)
    engine.add(second)
    for _ in range(3):
        engine.advance()
    engine.cancel(first)
    engine.run()
    assert first.stop_reason == "cancelled"
    assert second.result().text == "xyz"


def test_a_waiting_generation_can_be_cancelled(tokenizer):
    context = ScriptedContext(tokenizer, 1)
    engine = Engine(context)
    jobs = _jobs(tokenizer, context, [("a", "1"), ("b", "2")])
    for job in jobs:
        engine.add(job)
    engine.cancel(jobs[1])
    engine.run()
    assert jobs[1].tokens == []
    assert all(sequence == 0 for _, sequence, *_ in context.log)


def test_limits_of_tokens_and_context_end_it(tokenizer):
    context = ScriptedContext(tokenizer, 2, n_ctx=6)
    engine = Engine(context)
    short, full = _jobs(tokenizer, context, [("ab", "0123456789"), ("cd", "0123456789")])
    short.max_tokens = 3
    engine.add(short)
    engine.add(full)
    engine.run()
    assert (len(short.tokens), len(full.tokens)) == (3, 5)
    assert short.stop_reason == full.stop_reason == "length"


def test_a_failed_step_drops_everything_and_the_engine_goes_on(tokenizer):
    context = ScriptedContext(tokenizer, 2)
    engine = Engine(context, 2)
    jobs = _jobs(tokenizer, context, [("a", "0123"), ("b", "4567"), ("c", "89")])
    for job in jobs[:2]:
        engine.add(job)
    context.fail_at = 4
    with pytest.raises(ComputeError, match="the device broke"):
        engine.run()
    assert engine.is_idle
    assert context.under_way == 0
    engine.add(jobs[2])
    engine.run()
    assert jobs[2].result().text == "89"


def test_a_prompt_that_fits_no_sequence_is_refused_at_once(tokenizer):
    context = ScriptedContext(tokenizer, 1, n_ctx=4)
    engine = Engine(context)
    with pytest.raises(ContextFullError, match="5 do not fit 4"):
        engine.add(_jobs(tokenizer, context, [("vwxyz", "x")])[0])
    assert engine.is_idle


@pytest.mark.parametrize("groups", [0, -1, 3])
def test_groups_that_cannot_be_are_refused(tokenizer, groups):
    with pytest.raises(ConfigError, match=f"{groups} pipeline groups"):
        Engine(ScriptedContext(tokenizer, 2), groups)
