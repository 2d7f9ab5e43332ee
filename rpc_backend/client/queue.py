"""The work of one worker stream, in order, with a bounded part under way.

Belongs here: order, the window of unanswered bytes, refusals, the error that waits for a synchronising call. Must not
be here: what a piece of work sends (`work` and its kinds), messages (`dispatcher`).

A worker has one stream per device; everything a client does on that device goes through one queue. What is put in with
`enqueue` goes out when its turn comes, maybe from another thread, and nobody waits. The other calls wait for the work
they put in, and must not be used on a thread that brings answers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TypeVar

from rpc_backend.client.dispatcher import Answer, Dispatcher
from rpc_backend.client.flight import Flight
from rpc_backend.client.reads import Piece, ReadFuture, Reads
from rpc_backend.client.work import Asked, AskedAlways, Collect, Fence, Freed, Synchronize, Told, Wire, Work
from rpc_backend.errors import ChannelError, RpcBackendError, StaleGraphError
from rpc_backend.protocol import Command, NoticeEvent
from rpc_backend.protocol.commands import PEER_PUSH, SUBMIT_ONWARD

Request = TypeVar("Request")
Reply = TypeVar("Reply")

OnFailure = Callable[[RpcBackendError], None]


class CommandQueue:
    """The order of work on one device. Any thread may call it."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        stream: int,
        new_reads: Callable[[], Reads],
        *,
        window_nbytes: int,
        limit_nbytes: int,
    ) -> None:
        """`window_nbytes` is how much may go out before the worker is asked for a sign; queued work is held back while
        `limit_nbytes` would be unanswered with it, bulk work while two windows would be."""
        self.dispatcher = dispatcher
        self.stream = stream
        self.on_failure: list[OnFailure] = []
        self.is_stuck = False
        self._first_at_check: Work | None = None  # if it waited for its gate then
        self._new_reads = new_reads
        self._window_nbytes = window_nbytes
        self._limit_nbytes = limit_nbytes
        self._wire = Wire(dispatcher, stream)
        self._lock = threading.RLock()
        self._is_held = False
        self._is_freeing = False
        self._reads: Reads | None = None  # not yet waiting: they may still be joined by others
        self._waiting: deque[Work] = deque()
        self._flight = Flight(window_nbytes)
        self._error: RpcBackendError | None = None  # kept here, no longer at the worker
        self._noticed: RpcBackendError | None = None  # still kept at the worker
        self._notices: deque[NoticeEvent] = deque()
        self._to_tell: list[Callable[[], None]] = []
        dispatcher.watch(stream, self)

    def enqueue(self, *works: Work) -> None:
        """Queue work; it goes out now if it can, else when what it waits for has come."""
        enqueue_together([(self, works)])

    def _append(self, works: Iterable[Work]) -> None:
        if self._reads is not None:
            self._waiting.append(self._reads)
            self._reads = None
        self._waiting.extend(works)

    def _start(self, works: Iterable[Work]) -> None:
        for work in works:
            if work.gate is not None and not work.gate.done():
                work.gate.add_done_callback(lambda _: self._advance())
        self._advance()

    def withdraw(self, works: Iterable[Work]) -> None:
        """Take back what has not gone out: what it would send may change from now on."""
        with self._lock:
            for work in works:
                with suppress(ValueError):
                    self._waiting.remove(work)

    def read(self, pieces: Iterable[Piece], future: ReadFuture | None = None) -> None:
        """Queue a read; it goes out with all others that are queued next to it, once something else is queued."""
        with self._lock:
            if self._reads is None:
                self._reads = self._new_reads()
            self._reads.add(pieces, future)

    # Calls that wait

    def post(self, command: Command[Request, None], request: Request) -> None:
        """Send a command without reply, or nothing while an error waits to be raised."""
        self._wait_sent(Told(command, request), command.name)

    def free(self, command: Command[Request, None], request: Request) -> None:
        """Send a command without reply that gives memory back; the worker runs it on a failed stream too."""
        self._is_freeing = True
        self._wait_sent(Freed(command, request), command.name)

    def call(self, command: Command[Request, Reply], request: Request) -> Answer[Reply]:
        """Run a command and return its answer, when all before it is done.

        Raises:
            RpcBackendError: the answer, or an error of an earlier command; it is raised once.
        """
        return self._ask(Asked(command, request))

    def call_always(self, command: Command[Request, Reply], request: Request) -> Reply:
        """Run a command that the worker runs on a failed stream too. Raises its own errors only."""
        return self._ask(AskedAlways(command, request)).reply

    def synchronize(self) -> None:
        """Return when the worker has finished all queued before. Raises as `call`."""
        work = Synchronize()
        self.enqueue(work)
        self.dispatcher.wait_future(work.done, "SYNCHRONIZE")
        if work.error is not None:
            raise work.error

    def settle(self) -> None:
        """Return when all queued before is done; an error of it waits for the next synchronising call."""
        work = Fence()
        self.enqueue(work)
        self.dispatcher.wait_future(work.done, "SYNCHRONIZE")

    def settle_frees(self) -> None:
        """As `settle`, if memory is being given back; otherwise return at once."""
        if self._is_freeing:
            self._is_freeing = False
            self.settle()

    def _ask(self, asked: Asked[Reply]) -> Answer[Reply]:
        self.enqueue(asked)
        self.dispatcher.wait_future(asked.done, asked.command.name)
        return asked.answer()

    def _wait_sent(self, told: Told, name: str) -> None:
        try:
            self.enqueue(told)
            self.dispatcher.wait_future(told.sent, name)
        except BaseException:
            self.withdraw([told])
            raise
        error = told.error
        if error is not None and (not told.was_skipped or self.dispatcher.is_lost):
            raise error

    # What the dispatcher tells

    def on_notice(self, event: NoticeEvent) -> None:
        """Something without an answer failed.

        A failed run is told by the worker to whoever waits for its results, unless it could not send them. An error of
        any other command is kept by the worker for the next that it answers.
        """
        with self._lock:
            self._notices.append(event)
            if self._is_held:
                return  # it came while its own request was sent
        self._advance()

    def on_check(self) -> None:
        """See whether the first that waits still waits for its gate; it may then take another way."""
        with self._lock:
            first = self._waiting[0] if self._waiting else None
            if first is not None and (first.gate is None or first.gate.done()):
                first = None
            self.is_stuck = first is not None and first is self._first_at_check
            self._first_at_check = first
            if first is None or not self.is_stuck or not first.goes_round():
                return
        self._advance()

    def on_lost(self) -> None:
        """The worker is gone: nothing that waits will go out."""
        with self._lock:
            self._tell_failure(self.dispatcher.lost_error())
        self._advance()

    # Sending

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock; `_advance` must be called after, for what happens meanwhile."""
        with self._lock:
            was_held, self._is_held = self._is_held, True
            try:
                yield
            finally:
                self._is_held = was_held

    def _advance(self) -> None:
        """Send what can go out, and tell who waits; called whenever something changed."""
        with self._lock:
            if self._is_held:
                return  # whoever holds it calls again
            with self._held():
                self._send_waiting()
            to_tell, self._to_tell = self._to_tell, []
        for tell in to_tell:
            tell()

    def _send_waiting(self) -> None:
        self._take_notices()
        while self._waiting and self._may_send(self._waiting[0]):
            work = self._waiting.popleft()
            error = self._earlier_error(work)
            if error is None:
                try:
                    self._send(work)
                    continue
                except RpcBackendError as failure:
                    error = failure
            else:
                work.was_skipped = True
            self._end(work, error)

    def _may_send(self, work: Work) -> bool:
        if self.dispatcher.is_lost:
            return True  # and fail
        flight = self._flight
        if flight.is_questioning or (work.gate is not None and not work.gate.done()):
            return False
        is_ordered = work.is_run or not flight.n_runs
        limit_nbytes = 2 * self._window_nbytes if work.is_bulk else self._limit_nbytes
        if is_ordered and (not flight or flight.nbytes + work.nbytes <= limit_nbytes):
            return True
        if not (is_ordered and flight.is_answerable):  # else an answer will make room
            with suppress(ChannelError):  # a lost worker is told by itself
                self._prove()
        return not flight

    def _earlier_error(self, work: Work) -> RpcBackendError | None:
        """Return an error because of which `work` must not be sent."""
        if self.dispatcher.is_lost:
            return self.dispatcher.lost_error()
        if self._error is not None:
            return None if work.despite_error else self._error
        if self._noticed is None or not work.takes_error:
            return None
        error, self._noticed = self._noticed, None
        with suppress(ChannelError):
            self._send(Collect())
        return error

    def _send(self, work: Work) -> None:
        """Send work whose turn it is. Raises as `Work.send`."""
        flight = self._flight
        self._wire.is_idle = not flight
        self._wire.last_answer = flight.last.answers[-1] if flight and flight.last.answers else None
        work.answers = work.send(self._wire)
        flight.append(work)
        self._take_notices()
        if work.tells_when_sent:
            self._to_tell.append(work.was_sent)
        attempt = work.attempt
        for pending in work.answers:
            pending.future.add_done_callback(lambda _: self._on_answer(work, attempt))
        if flight.needs_fence:
            with suppress(ChannelError):
                self._prove()

    def _prove(self) -> None:
        """See to it that an answer comes for the last that was sent."""
        if self._flight and not self._flight.last.answers:
            self._send(Fence())

    # Answers

    def _on_answer(self, work: Work, attempt: int) -> None:
        with self._held():
            if work.attempt == attempt:  # else it is finished already
                self._take_answers(work)
        self._advance()

    def _take_answers(self, work: Work) -> None:
        """Finish all before `work`, and itself if all of its answers are there."""
        while self._flight.first is not work:
            if self._flight.first.is_refused:
                self._repair()
                return
            self._finish_first()
        if work.is_refused:
            self._repair()
        elif work.is_answered:
            self._finish_first()

    def _take_notices(self) -> None:
        while self._notices:
            event = self._notices.popleft()
            if event.code == SUBMIT_ONWARD.code:
                work = self._flight.find(event.request) if isinstance(event.error, StaleGraphError) else None
                if work is not None:
                    work.was_refused = True
                    self._take_answers(work)
                continue
            if event.code == PEER_PUSH.code:
                for device, ticket in self._wire.take_expected(event.request):
                    self._to_tell.append(partial(device.drop_tickets, [ticket], str(event.error)))
            else:
                self._noticed = event.error
                if self._is_taken():
                    continue
            self._tell_failure(event.error)

    def _is_taken(self) -> bool:
        """Whether work that came later gives an error to who waits for it, so that nobody else has to be told."""
        last = [self._flight.last] if self._flight else []
        return any(work.takes_error for work in (*last, *self._waiting))

    def _finish_first(self) -> None:
        work = self._flight.take_first()
        try:
            work.take_answers()
        except RpcBackendError as error:
            if not isinstance(work, AskedAlways):
                self._noticed = None  # the worker has told it now
            self._end(work, error)
        else:
            self._end(work, None)
        work.answers = ()  # their futures know the work: break the circle

    def _repair(self) -> None:
        """Send again what the worker refused, in order and before all that waits."""
        again = self._flight.take_refused()
        self._wire.is_refused = self._wire.is_refused or again[0].is_run
        for work in again:
            work.send_again()
        self._waiting.extendleft(reversed(again))

    def _end(self, work: Work, error: RpcBackendError | None) -> None:
        """Give a piece of work its own or an earlier error, or keep that."""
        if error is not None:
            error.located(worker=self.dispatcher.name)
        if work.takes_error:
            error, self._error = self._error or error, None
        elif work.keeps_error and not self.dispatcher.is_lost:
            self._error = self._error or error  # the loss of this worker is raised by every call anyway
        work.error = error
        self._to_tell.append(work.settle)
        if error is not None and work.is_run and not work.takes_error:
            self._tell_failure(error)

    def _tell_failure(self, error: RpcBackendError) -> None:
        self._to_tell.extend(partial(callback, error) for callback in self.on_failure)


def enqueue_together(parts: Sequence[tuple[CommandQueue, Sequence[Work]]]) -> None:
    """Queue work in several queues at one moment.

    Works of different queues may wait for each other; so between those that one caller queues, and those of another,
    there must be one order for all queues.
    """
    with ExitStack() as locked:
        for queue in sorted({id(queue): queue for queue, _ in parts}.values(), key=id):
            locked.enter_context(queue._lock)
        for queue, works in parts:
            queue._append(works)
    for queue, works in parts:
        queue._start(works)
