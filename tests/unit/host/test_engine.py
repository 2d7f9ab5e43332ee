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


class ScriptedGiven:
    is_open = True

    def discard(self):
        self.is_open = False


class ScriptedStep:
    def __init__(self, context, rows, error=None, *, is_followed=False):
        self._context, self._rows, self._error = context, rows, error
        self.waited = False
        self.given = ScriptedGiven() if is_followed else None
        if is_followed:
            context.given.append(self.given)

    def is_done_within(self, timeout_s):
        return self.waited

    def wait(self):
        if not self.waited:
            self.waited = True
            self._context.under_way -= 1
        if self._error:
            raise self._error

    def tokens(self):
        self.wait()
        return np.array(self._rows, np.int32)

    def log_probs(self):
        return None

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
        self.can_run_ahead = False
        self.given = []

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

    def start_decode(self, tokens, sampling=None, span=None, *, is_followed=False):
        for sequence, token in tokens.items():
            self.fed[sequence].append(token)
        rows = [self._next(sequence) if sequence in tokens else 0 for sequence in span]
        return self._step(("decode", *sorted(tokens)), rows, is_followed=is_followed)

    def start_following(self, step, sequences, sampling, span):
        assert step.given.is_open
        assert len(step._rows) == len(span)
        step.given.is_open = False
        rows = [0] * len(span)
        for sequence in sequences:
            self.fed[sequence].append(step._rows[sequence - span.start])
            rows[sequence - span.start] = self._next(sequence)
        return self._step(("follow", *sorted(sequences)), rows, is_followed=True)

    def _step(self, entry, rows, *, is_followed=False):
        self.log.append(entry)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        error = ComputeError("the device broke") if self.fail_at == len(self.log) else None
        return ScriptedStep(self, rows, error, is_followed=is_followed)

    def _next(self, sequence):
        fed = self.fed[sequence]
        for prompt, answer in self.answers.items():
            n_drawn = len(fed) - len(prompt)
            if tuple(fed[: len(prompt)]) == prompt and fed[len(prompt) :] == (answer + 2 * answer[-1:])[:n_drawn]:
                return (answer + 2 * answer[-1:])[n_drawn]  # steps may run on behind the end
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
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_every_generation_gets_its_answer_whatever_the_order(tokenizer, groups, prefill_first, n_seq, runs_ahead):
    context = ScriptedContext(tokenizer, n_seq)
    context.can_run_ahead = runs_ahead
    engine = Engine(context, groups, prefill_first=prefill_first, device_sampling=runs_ahead)
    jobs = _jobs(tokenizer, context, PAIRS)
    for job in jobs:
        engine.add(job)
    engine.run()
    assert [job.result().text for job in jobs] == [answer for _, answer in PAIRS]
    assert all(job.stop_reason == "end" for job in jobs)
    assert engine.is_idle
    assert context.under_way == 0
    assert not any(given.is_open for given in context.given)
    assert any(entry[0] == "follow" for entry in context.log) == runs_ahead


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


def _ahead(tokenizer, n_seq, groups=1, **options):
    context = ScriptedContext(tokenizer, n_seq, **options)
    context.can_run_ahead = True
    return context, Engine(context, groups, device_sampling=True)


def test_a_step_runs_ahead_of_the_tokens_it_takes(tokenizer):
    context, engine = _ahead(tokenizer, 1)
    (job,) = _jobs(tokenizer, context, [("a", "0123456789")], max_tokens=6)
    engine.add(job)
    engine.advance()
    assert len(job.tokens) == 1
    engine.advance()
    assert (len(job.tokens), context.under_way) == (2, 2)
    engine.run()
    # The first token is the prompt's; no step is started that is known to be one too many.
    assert [entry[0] for entry in context.log] == ["append", "decode", *["follow"] * 4]
    assert job.result().text == "012345"
    assert len(context.fed[0]) == len(job.prompt) + 5


def test_groups_run_ahead_in_turn(tokenizer):
    context, engine = _ahead(tokenizer, 2, 2)
    for job in _jobs(tokenizer, context, [("a", "01234567"), ("b", "01234567")], max_tokens=8):
        engine.add(job)
    engine.run()
    steps = [entry for entry in context.log if entry[0] != "append"]
    assert [entry[1] for entry in steps] == [0, 1] * 7
    assert [entry[0] for entry in steps[3:]] == ["follow"] * 11  # the first began beside the other's prompt


def test_an_end_that_nobody_foresaw_costs_one_step_and_frees_the_sequence(tokenizer):
    context, engine = _ahead(tokenizer, 1)
    short, late = _jobs(tokenizer, context, [("a", "xy"), ("b", "0123")])
    engine.add(short)
    engine.add(late)
    engine.run()
    assert (short.stop_reason, short.result().text, late.result().text) == ("end", "xy", "0123")
    assert [entry[0] for entry in context.log].count("append") == 2


@pytest.mark.parametrize("n_ctx", [3, 4, 5, 8])
def test_running_ahead_fills_a_context_to_the_last_token(tokenizer, n_ctx):
    texts = []
    for runs_ahead in (False, True):
        context, engine = _ahead(tokenizer, 1, n_ctx=n_ctx)
        context.can_run_ahead = runs_ahead
        (job,) = _jobs(tokenizer, context, [("a", "0123456789")])
        engine.add(job)
        engine.run()
        assert (job.stop_reason, len(context.fed[0])) == ("length", n_ctx)
        texts.append(job.result().text)
    assert texts[0] == texts[1]


def test_nothing_runs_ahead_while_a_prompt_is_on_its_way(tokenizer):
    context, engine = _ahead(tokenizer, 2, ubatch=1)
    first, second = _jobs(tokenizer, context, [("a", "0123456789"), ("long prompt", "xyz")])
    engine.add(first)
    for _ in range(3):
        engine.advance()
    engine.add(second)
    n_before = len(context.log)
    while engine.is_prefilling:
        engine.advance()
    assert "follow" not in [entry[0] for entry in context.log[n_before:]]
    engine.run()
    assert [job.result().text for job in (first, second)] == ["0123456789", "xyz"]


def test_a_failure_under_way_drops_what_ran_ahead(tokenizer):
    context, engine = _ahead(tokenizer, 1)
    (job,) = _jobs(tokenizer, context, [("a", "0123456789")])
    context.fail_at = 3
    engine.add(job)
    with pytest.raises(ComputeError):
        engine.run()
    assert engine.is_idle
    assert context.under_way == 0
    assert not any(given.is_open for given in context.given)


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
