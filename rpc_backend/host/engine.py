"""Many generations over one context: admitted, advanced and finished independently.

Belongs here: who runs next. Must not be here: graphs and devices (`context`), or the state of one generation
(`generation`).

The sequences are divided into `pipeline_groups` runs of neighbours. Each group has one decode step at work at most,
so that with as many groups as stages every stage works all the time. A new generation prefills its sequence in chunks
beside the decode steps of others, and then joins its group's next step.

Where devices pass tokens on themselves, a group's next step starts before the host has seen the tokens of the last, and
waits for these at its first device. A generation that turns out to have ended is in one step too many, whose row for it
means nothing. While prompts are on their way nothing runs ahead: they have work for devices that would wait.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from rpc_backend.errors import ConfigError, RpcBackendError
from rpc_backend.host.chunks import chunked
from rpc_backend.host.context import Context, PendingStep
from rpc_backend.host.device_sampling import DeviceSampling, sampling_of
from rpc_backend.host.generation import Job, StreamPiece

_CHUNKS_UNDER_WAY = 4  # at least; two for each stage

_QUIET_S = 0.0003
"""How long nothing else is done in this process after a step was started, so that its messages leave at once."""

Advance = list[tuple[Job, StreamPiece]]


@dataclass(slots=True, eq=False)
class _Group:
    """Neighbouring sequences that decode in one step, and who lives in them."""

    first: int
    n_seqs: int
    live: dict[int, Job] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)

    def free_sequence(self) -> int | None:
        sequences = range(self.first, self.first + self.n_seqs)
        return next((sequence for sequence in sequences if sequence not in self.taken), None)

    @property
    def has_room(self) -> bool:
        return len(self.taken) < self.n_seqs

    def span(self) -> range:
        """The sequences of a decode step: few different counts, so that few graphs serve all."""
        n_rows = max(self.live) + 1 - self.first
        return range(self.first, self.first + min(self.n_seqs, 1 << (n_rows - 1).bit_length()))

    def retire(self) -> None:
        """Free the sequences of generations that have ended."""
        for sequence in [sequence for sequence, job in self.live.items() if job.stop_reason is not None]:
            del self.live[sequence]
            self.taken.discard(sequence)


@dataclass(slots=True, eq=False)
class _Prefill:
    """A prompt on its way into its sequence."""

    job: Job
    sequence: int
    group: _Group
    chunks: deque[Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class _Under:
    """A step under way. Row i of its results is that of sequence `first` + i; `members` are those that count."""

    step: PendingStep
    group: _Group
    members: dict[int, Job]
    first: int
    is_prefill: bool
    is_sampled: bool

    def has(self, members: dict[int, Job]) -> bool:
        """Whether it is a step of these very generations."""
        return len(members) == len(self.members) and all(self.members.get(key) is job for key, job in members.items())

    def discard_given(self) -> None:
        """No step follows this one."""
        if self.step.given is not None:
            self.step.given.discard()


class Engine:
    """Advances all generations it was given. Not for several threads at once.

    With `device_sampling` tokens are drawn on the device that has the logits wherever the sampler allows it. With
    `prefill_first` no decode step starts while a prompt is on its way: less work in all, but those who already
    decode wait.
    """

    def __init__(
        self,
        context: Context,
        pipeline_groups: int = 1,
        *,
        device_sampling: bool = False,
        prefill_first: bool = False,
    ) -> None:
        """Divide the context's sequences into groups as equal as can be.

        Raises:
            ConfigError: no group, or fewer sequences than groups.
        """
        if not 1 <= pipeline_groups <= context.n_seq:
            raise ConfigError(
                f"{pipeline_groups} pipeline groups need at least as many sequences; this context has {context.n_seq}"
            )
        bounds = [index * context.n_seq // pipeline_groups for index in range(pipeline_groups + 1)]
        self._groups = [_Group(first, end - first) for first, end in pairwise(bounds)]
        self._context = context
        self._device_sampling = device_sampling
        self._prefill_first = prefill_first
        self._waiting: deque[Job] = deque()
        self._prefills: deque[_Prefill] = deque()
        self._under: deque[_Under] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether every generation has ended and nothing is under way."""
        return not (self._waiting or self._prefills or self._under or any(group.live for group in self._groups))

    @property
    def is_prefilling(self) -> bool:
        """Whether a prompt is on its way, or will be at the next `advance`."""
        return self._is_filling or bool(self._waiting and any(group.has_room for group in self._groups))

    @property
    def _is_filling(self) -> bool:
        return bool(self._prefills) or any(under.is_prefill for under in self._under)

    def add(self, job: Job) -> None:
        """Take a generation in; it starts as soon as a sequence is free.

        Raises:
            ContextFullError: its prompt fits no sequence.
        """
        self._context.need_capacity(len(job.prompt))
        if job.max_tokens == 0:
            job.stop_reason = "length"
        else:
            self._waiting.append(job)

    def cancel(self, job: Job) -> None:
        """End a generation early; its sequence is free once no step needs it."""
        if job in self._waiting:
            self._waiting.remove(job)
        if job.stop_reason is None:
            job.stop_reason = "cancelled"

    def run(self) -> None:
        """Advance until every generation has ended. Raises as `advance`."""
        while not self.is_idle:
            self.advance()

    def advance(self) -> Advance:
        """Start what can start, wait for the oldest step under way, and return the pieces it gave.

        Raises:
            RpcBackendError: a step failed. All generations are then dropped, and the engine is idle.
        """
        try:
            self._admit()
            self._start_prefills()
            for group in self._groups:
                self._start_decode(group)
            for group in self._groups:
                self._start_following(group)
            return self._finish(self._under.popleft()) if self._under else []
        except BaseException:
            self._drop_all()
            raise

    def _admit(self) -> None:
        while self._waiting:
            group = min(self._groups, key=lambda each: len(each.taken) / each.n_seqs)
            group.retire()
            sequence = group.free_sequence()
            if sequence is None:
                return
            job = self._waiting.popleft()
            self._context.clear(sequence)
            group.taken.add(sequence)
            chunks = deque(chunked(job.prompt, self._context.chunk_width(len(job.prompt) + self._n_behind())))
            self._prefills.append(_Prefill(job, sequence, group, chunks))

    def _n_behind(self) -> int:
        """Return how many prompt tokens besides will pass the stages one after the other."""
        under_way = sum(len(chunk) for prefill in self._prefills for chunk in prefill.chunks)
        return under_way + sum(len(job.prompt) for job in self._waiting)

    def _start_prefills(self) -> None:
        most = max(_CHUNKS_UNDER_WAY, 2 * self._context.n_stages)
        while self._prefills and sum(under.is_prefill for under in self._under) < most:
            prefill = self._prefills[0]
            job, sequence = prefill.job, prefill.sequence
            job.started_s = job.started_s or time.perf_counter()
            chunk = prefill.chunks.popleft()
            is_last = not prefill.chunks
            sampling = self._sampling([job]) if is_last else None
            step = self._context.start_append(sequence, chunk, int(is_last), sampling)
            members = {sequence: job} if is_last else {}
            self._under.append(_Under(step, prefill.group, members, sequence, True, sampling is not None))
            if is_last:
                self._prefills.popleft()

    def _start_decode(self, group: _Group) -> None:
        group.retire()
        is_busy = any(under.group is group and not under.is_prefill for under in self._under)
        if is_busy or not group.live or (self._prefill_first and self._is_filling):
            return
        tokens = {sequence: job.tokens[-1] for sequence, job in group.live.items()}
        span, sampling = self._rows(group)
        is_followed = sampling is not None and self._goes_on(group, 1, 2) and self._context.can_run_ahead
        step = self._context.start_decode(tokens, sampling, span, is_followed=is_followed)
        self._under.append(_Under(step, group, dict(group.live), span.start, False, sampling is not None))

    def _start_following(self, group: _Group) -> None:
        """Start the step after a group's last one, if that can be followed and all its generations go on.

        Groups take turns: a step that waits at its first device keeps those after it waiting.
        """
        last = next((under for under in reversed(self._under) if under.group is group), None)
        if last is None or last.step.given is None or not last.step.given.is_open:
            return
        n_under = sum(under.group is group for under in self._under)
        is_turn = self._under[-1].group is not group or not any(each.live for each in self._groups if each is not group)
        if n_under > 1 or not is_turn or not last.has(group.live) or not self._goes_on(group, n_under, 1):
            return
        span, sampling = self._rows(group)
        assert sampling is not None, "the step before was sampled, by the same parameters"
        step = self._context.start_following(last.step, group.live, sampling, span)
        self._under.append(_Under(step, group, dict(group.live), span.start, False, True))

    def _rows(self, group: _Group) -> tuple[range, DeviceSampling | None]:
        """Return the sequences of a group's next decode step, and how it samples; counts the draws."""
        span = group.span()
        return span, self._sampling([group.live.get(sequence) for sequence in span])

    def _goes_on(self, group: _Group, n_under: int, n_tokens: int) -> bool:
        """Whether all of a group's generations want a step after `n_under` more, and have room for `n_tokens`, as far
        as is known; never while a prompt is on its way."""
        return not self.is_prefilling and all(
            job.stop_reason is None
            and len(job.tokens) + n_under < job.max_tokens
            and self._context.room(sequence) >= n_tokens
            for sequence, job in group.live.items()
        )

    def _sampling(self, jobs: Sequence[Job | None]) -> DeviceSampling | None:
        if not self._device_sampling:
            return None
        samplers = [None if job is None else job.sampler for job in jobs]
        log_probs = any(job is not None and job.wants_log_probs for job in jobs)
        return sampling_of(samplers, self._context.n_vocab, log_probs=log_probs)

    def _finish(self, under: _Under) -> Advance:
        """Count the tokens of a step, start the group's next one, and only then turn tokens into text.

        After a prefill `advance` starts the next one: who waits for the end of all prompts sees no step under way.
        """
        group = under.group
        is_last = not any(later.group is group for later in self._under)
        if is_last and not under.is_prefill and group.live and not under.step.is_done_within(_QUIET_S):
            self._context.foresee_decode(group.live, group.span())
        under.step.wait()
        if not under.members:
            return []
        drawn = {sequence: job for sequence, job in under.members.items() if job.stop_reason is None}
        draw = _take if under.is_sampled else _accept
        draw(under.step, [(job, sequence - under.first) for sequence, job in drawn.items()])
        for sequence, job in drawn.items():
            n_later = sum(later.members.get(sequence) is job for later in self._under)
            job.end_if_full(self._context.room(sequence) + n_later)
        if under.is_prefill:
            under.group.live.update(under.members)
        by_text = [job for job in drawn.values() if job.ends_by_text]
        pieces = [(job, piece) for job in by_text for piece in job.read()]
        under.discard_given()
        if not under.is_prefill:
            self._start_decode(group)
            self._start_following(group)
        rest = [job for job in drawn.values() if not job.ends_by_text]
        return pieces + [(job, piece) for job in rest for piece in job.read()]

    def _drop_all(self) -> None:
        """After a failure: let what is under way end, and forget every generation."""
        for under in self._under:
            with suppress(RpcBackendError):
                under.step.wait()
            under.discard_given()
        self._under.clear()
        self._prefills.clear()
        self._waiting.clear()
        for group in self._groups:
            group.live.clear()
            group.taken.clear()


def _accept(step: PendingStep, rows: Sequence[tuple[Job, int]]) -> None:
    """Let jobs draw from their rows of a step's logits."""
    logits = step.logits()
    for job, row in rows:
        job.accept(logits[row])


def _take(step: PendingStep, rows: Sequence[tuple[Job, int]]) -> None:
    """Give jobs the tokens that the device drew for their rows."""
    tokens, log_probs = step.tokens().tolist(), step.log_probs()
    for job, row in rows:
        job.take(tokens[row], None if log_probs is None else float(log_probs[row]))
