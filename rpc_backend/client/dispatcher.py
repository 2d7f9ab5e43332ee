"""Requests out, answers in: the one place where a connection's messages pass.

Belongs here: futures of open requests, deadlines, what happens when the worker is lost. Must not be here: what
commands mean (`device`, `stream`), opening connections (`connection`).

The channel's I/O thread delivers messages; callers hold the lock to number a message and give it to the channel, which
never waits, so messages leave in the order of their numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import CancelledError, Future
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rpc_backend.client.counters import Counters
from rpc_backend.client.pulse import Pulse, Verdict
from rpc_backend.errors import DeadlineError, ErrorContext, WorkerLostError
from rpc_backend.interfaces import Carrier, Channel, LinkOffer, Ticket
from rpc_backend.load_profile import LoadProfile
from rpc_backend.protocol import (
    ClientConversation,
    Command,
    ErrorEvent,
    Frame,
    Frames,
    Limits,
    NoticeEvent,
    ReplyEvent,
)
from rpc_backend.protocol.commands import PING
from rpc_backend.protocol.records import Empty
from rpc_backend.settings import Settings

Request = TypeVar("Request")
Reply = TypeVar("Reply")

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer(Generic[Reply]):
    """A reply. `payload` is a view of the received frame, empty if the command has none."""

    reply: Reply
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Pending(Generic[Reply]):
    """A request whose answer is to come. Its future always ends: with the worker, or at the deadline."""

    sequence: int
    command: Command[Any, Reply]
    future: Future[Answer[Reply]]


class Watcher(Protocol):
    """Who wants to know what nobody waits for. Called on the I/O thread, without any lock; must not block.

    `is_stuck`: the first of what waits there waited for something elsewhere at the last two checks.
    """

    is_stuck: bool

    def on_check(self) -> None:
        """Some time has passed. Called on another thread."""

    def on_notice(self, event: NoticeEvent) -> None:
        """A command without reply failed on the stream."""

    def on_lost(self) -> None:
        """Every call fails from now on."""


class Dispatcher:
    """The traffic of one connection. Any thread may call it."""

    def __init__(self, name: str, settings: Settings, limits: Limits) -> None:
        """`name` is the endpoint, for errors; `counters` counts what passes, `profile` times it if the switch asks."""
        self.name = name
        self.settings = settings
        self.profile = LoadProfile() if settings.loadprof else None
        self._timeout_s = settings.command_timeout_ms / 1000
        self._conversation = ClientConversation(limits)
        self._pulse = Pulse(settings.heartbeat_timeout_ms / 1000)
        self.counters = Counters()
        self._lock = threading.RLock()
        self._open: dict[int, tuple[Pending[Any], float]] = {}
        self._watchers: dict[int, Watcher] = {}
        self._channel: Channel | None = None
        self._lost: Exception | None = None

    @property
    def is_lost(self) -> bool:
        """Whether every call fails from now on."""
        return self._lost is not None

    @property
    def minor(self) -> int:
        """The protocol minor of the connection; 0 before it is agreed."""
        return self._conversation.minor or 0

    @property
    def interval_s(self) -> float:
        """How often `check` should be called."""
        return self._pulse.interval_s

    def attach(self, channel: Channel) -> None:
        """Send through `channel`, whose callbacks are `on_message` and `on_lost`."""
        self._channel = channel

    @property
    def carrier(self) -> Carrier:
        """How large payloads travel."""
        return Carrier() if self._channel is None else self._channel.carrier

    def offer_links(self) -> list[LinkOffer]:
        """See `Channel.offer_links`."""
        return [] if self._channel is None else self._channel.offer_links()

    def take_link(self, answers: list[LinkOffer]) -> None:
        """See `Channel.take_link`."""
        if self._channel is not None:
            self._channel.take_link(answers)

    def agree(self, minor: int) -> None:
        """HELLO went well: allow every command of this minor version."""
        with self._lock:
            self._conversation.agree(minor)

    def watch(self, stream: int, watcher: Watcher) -> None:
        """Tell `watcher` of the notices of a stream, and of the end. There is one watcher per stream."""
        with self._lock:
            self._watchers[stream] = watcher

    def call(
        self,
        command: Command[Request, Reply],
        request: Request,
        payload: Frame | None = None,
        *,
        stream: int = 0,
        timeout_s: float | None = None,
    ) -> Reply:
        """Send a request and return its reply.

        Raises:
            DeadlineError: no answer in time.
            WorkerLostError: the worker is gone.
            RpcBackendError: the worker's own answer.
        """
        return self.wait(self.submit(command, request, payload, stream=stream), timeout_s=timeout_s).reply

    def submit(
        self, command: Command[Request, Reply], request: Request, payload: Frame | None = None, *, stream: int = 0
    ) -> Pending[Reply]:
        """Send a request and return at once; `payload` must not change before the answer came.

        Raises:
            WorkerLostError: the worker is gone.
        """
        future: Future[Answer[Reply]] = Future()
        with self._lock:
            sequence, frames = self._conversation.request(command, request, stream=stream, payload=payload)
            pending = Pending(sequence, command, future)
            self._open[sequence] = (pending, time.monotonic())
            self._send(command, frames)
        return pending

    def post(
        self, command: Command[Request, None], request: Request, payload: Frame | None = None, *, stream: int = 0
    ) -> tuple[int, Ticket]:
        """Send a command that has no reply; return its sequence number, and when `payload` may change.

        Raises as `submit`.
        """
        with nullcontext() if self.profile is None else self.profile.timing_command(command.name), self._lock:
            sequence, frames = self._conversation.request(command, request, stream=stream, payload=payload)
            return sequence, self._send(command, frames)

    def wait(self, pending: Pending[Reply], *, timeout_s: float | None = None) -> Answer[Reply]:
        """Return the answer of a request. Raises as `call`."""
        self.wait_answered(pending, timeout_s=timeout_s)
        return pending.future.result()

    def wait_answered(self, pending: Pending[Any], *, timeout_s: float | None = None) -> None:
        """Return when a request is answered, or has failed."""
        started_s = time.monotonic()
        deadline_s = started_s + (self._timeout_s if timeout_s is None else timeout_s)
        while not self._wait_briefly(pending.future, deadline_s):
            if time.monotonic() >= deadline_s:
                self._give_up(pending, time.monotonic() - started_s)
                return
            self._check_pulse(started_s)

    def wait_future(self, future: Future[Any], what: str) -> None:
        """Return when the future of queued work is done; `what` it stands for is named if it is late.

        Raises:
            DeadlineError: it took longer than a command may.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while not self._wait_briefly(future, deadline_s + 2 * self.interval_s):
            self.check()
            if time.monotonic() > deadline_s + self.interval_s and not future.done():
                text = f"it did not come to its turn within {self._timeout_s:g} s"
                raise DeadlineError(text, context=ErrorContext(worker=self.name, command=what))

    def _wait_briefly(self, future: Future[Any], deadline_s: float) -> bool:
        left_s = deadline_s - time.monotonic()
        try:
            future.exception(max(0.0, min(left_s, self._pulse.interval_s)))
        except (TimeoutError, CancelledError):
            return future.done()
        return True

    def check(self) -> None:
        """Give up requests that are open for too long, and the worker if it says nothing: call it now and then."""
        now_s = time.monotonic()
        with self._lock:
            opened = list(self._open.values())
        for pending, since_s in opened:
            if now_s - since_s <= self._timeout_s:
                break  # they are in the order of sending
            self._give_up(pending, now_s - since_s)
        if opened:
            self._check_pulse(opened[0][1])
        for watcher in list(self._watchers.values()):
            watcher.on_check()

    def is_stuck(self, stream: int) -> bool:
        """Whether a stream's watcher is stuck."""
        watcher = self._watchers.get(stream)
        return watcher is not None and watcher.is_stuck

    def wait_sent(self, ticket: Ticket) -> None:
        """Return when the bytes of a message may be changed.

        Raises:
            DeadlineError: they did not leave in time.
        """
        started_s = time.monotonic()
        while not ticket.done:
            try:
                ticket.wait(self._pulse.interval_s)
            except DeadlineError:
                if time.monotonic() - started_s > self._timeout_s:
                    text = f"bytes did not leave for the worker within {self._timeout_s:g} s"
                    raise DeadlineError(text, context=ErrorContext(worker=self.name)) from None
                self._check_pulse(started_s)

    def on_message(self, frames: list[memoryview]) -> None:
        """Take one message from the worker. Raises ProtocolError if the connection is of no more use."""
        with self._lock:
            event = self._conversation.receive(frames)
            self._pulse.heard(time.monotonic())
            opened = None if isinstance(event, NoticeEvent) else self._open.pop(event.request, None)
        if isinstance(event, NoticeEvent):
            self._tell(event)
            return
        self.counters.received(event.command.name, sum(frame.nbytes for frame in frames))
        if opened is not None:
            if self.profile is not None:
                self.profile.command(event.command.name, time.monotonic() - opened[1])
            _settle(opened[0].future, event, self.name)

    def on_lost(self, error: Exception) -> None:
        """Fail every open request, and every later one."""
        with self._lock:
            is_first = self._lost is None
            if is_first:
                self._lost = error
            waiting, self._open = list(self._open.values()), {}
        for pending, _ in waiting:
            pending.future.set_exception(self._lost_error(pending.command.name))
        if is_first:
            for watcher in list(self._watchers.values()):
                watcher.on_lost()

    def lost_error(self) -> WorkerLostError:
        """Return why the worker is lost; a new exception for each who raises it."""
        return self._lost_error("")

    def close(self, linger_s: float) -> None:
        """Send what is queued, then end; open requests fail. A second call does nothing."""
        if self._channel is not None:
            self._channel.close(linger_s)
        self.on_lost(WorkerLostError("the connection was closed here"))

    def abort(self) -> None:
        """End at once; open requests fail. Never raises."""
        if self._channel is not None:
            self._channel.abort()
        self.on_lost(WorkerLostError("the connection was closed here"))

    def _send(self, command: Command[Any, Any], frames: Frames) -> Ticket:
        if self._lost is not None or self._channel is None:
            raise self._lost_error(command.name)
        try:
            ticket = self._channel.send(frames)
        except WorkerLostError as error:
            raise error.located(worker=self.name, command=command.name) from None
        self.counters.sent(command.name, sum(memoryview(frame).nbytes for frame in frames))
        return ticket

    def _tell(self, event: NoticeEvent) -> None:
        # The stream raises it at its next synchronising call; the log is for those who watch it.
        _LOG.info("worker %s: stream %d: %s", self.name, event.stream, event.error)
        event.error.located(worker=self.name)
        watcher = self._watchers.get(event.stream)
        if watcher is not None:
            watcher.on_notice(event)

    def _give_up(self, pending: Pending[Any], waited_s: float) -> None:
        """Fail a request that is still open; its late answer is dropped."""
        with self._lock:
            is_open = self._open.pop(pending.sequence, None) is not None
        if is_open:
            context = ErrorContext(worker=self.name, command=pending.command.name)
            pending.future.set_exception(DeadlineError(f"no answer within {waited_s:.1f} s", context=context))

    def _check_pulse(self, waiting_since_s: float) -> None:
        with self._lock:
            if self._conversation.minor is None:
                return  # HELLO has a deadline of its own, and nothing can be asked before its answer
            verdict = self._pulse.judge(waiting_since_s, time.monotonic())
        if verdict is Verdict.ASK:
            self.submit(PING, Empty())
        elif verdict is Verdict.LOST:
            timeout_s = self._pulse.timeout_s
            self.on_lost(WorkerLostError(f"it has not answered anything, PING included, for {timeout_s:g} s"))
            self.abort()

    def _lost_error(self, command: str) -> WorkerLostError:
        """Return a new exception: several threads may raise it."""
        reason = self._lost.message if isinstance(self._lost, WorkerLostError) else str(self._lost)
        error = WorkerLostError(f"worker lost: {reason}", context=ErrorContext(worker=self.name, command=command))
        error.__cause__ = self._lost
        return error


def _settle(future: Future[Answer[Any]], event: ReplyEvent | ErrorEvent, name: str) -> None:
    if isinstance(event, ErrorEvent):
        future.set_exception(event.error.located(worker=name, command=event.command.name))
    else:
        future.set_result(Answer(event.body, memoryview(b"") if event.payload is None else event.payload))
