"""What a stream is asked to do, as objects in a queue.

Belongs here: the form of one piece of work, and the pieces that are one command. Must not be here: order and
windows (`queue`), runs of tasks and graphs (`runs`), reads (`reads`), events (`events`).

A piece is sent when its turn comes, is answered when all of its answers came, and is finished in the order of
sending. Methods are called with the lock of the queue held unless they say otherwise, and must not wait or call back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from rpc_backend.client.dispatcher import Answer, Dispatcher, Pending
from rpc_backend.errors import RpcBackendError
from rpc_backend.interfaces import Device, Ticket
from rpc_backend.protocol import Command, Frame
from rpc_backend.protocol.commands import SYNCHRONIZE
from rpc_backend.protocol.records import Empty

Reply = TypeVar("Reply")

Expected = tuple[Device, bytes]
"""A device that waits for a ticket."""

_MAX_EXPECTED = 1024


class Wire:
    """One stream of a connection, as the work sees it that is sent there.

    `is_refused`: the worker refuses runs of tasks until one resumes them. `is_idle`: all that was sent before is
    answered. `last_answer` is to what was sent last, None
    if that is not answered or was answered already.
    """

    __slots__ = ("_expected", "dispatcher", "is_idle", "is_refused", "last_answer", "stream")

    def __init__(self, dispatcher: Dispatcher, stream: int) -> None:
        self.dispatcher = dispatcher
        self.stream = stream
        self.is_idle = True
        self.is_refused = False
        self.last_answer: Pending[Any] | None = None
        self._expected: OrderedDict[int, list[Expected]] = OrderedDict()

    def expect(self, sequence: int, expected: list[Expected]) -> None:
        """Remember who waits for what a request sends onward."""
        self._expected[sequence] = expected
        if len(self._expected) > _MAX_EXPECTED:
            self._expected.popitem(last=False)

    def take_expected(self, sequence: int) -> list[Expected]:
        """Return and forget who waits for what a request sends onward."""
        return self._expected.pop(sequence, [])

    def submit(self, command: Command[Any, Reply], request: Any, payload: Frame | None = None) -> Pending[Reply]:
        """Send a command that has a reply. Raises as `Dispatcher.submit`."""
        return self.dispatcher.submit(command, request, payload, stream=self.stream)

    def post(self, command: Command[Any, None], request: Any, payload: Frame | None = None) -> tuple[int, Ticket]:
        """Send a command that has no reply; return its sequence number and ticket. Raises as `Dispatcher.post`."""
        return self.dispatcher.post(command, request, payload, stream=self.stream)


class Work(ABC):
    """One piece of work.

    `answers` is what the last sending gets back, in order; `attempt` grows when these answers no longer matter. `error`
    is why it failed, `was_skipped` if that was an error of earlier work.
    """

    nbytes: int = 0
    """About what it takes at the worker while it waits there."""
    gate: Future[Any] | None = None
    """What must be done before it is sent."""
    is_run: bool = False
    """A run of a task: it may be refused, and be sent again together with the runs that were sent after it. So nothing
    else is sent while it is unanswered."""
    is_bulk: bool = False
    """It is sent only while little is under way: what waits, waits here and not at the worker."""
    sequence: int = 0
    """The number of its request, if it is a run that is not answered."""
    takes_error: bool = False
    """An error of earlier work goes to this piece instead of to the next synchronising call."""
    keeps_error: bool = True
    """Its own error waits for the next synchronising call."""
    despite_error: bool = False
    """It is sent, and the worker does it, although earlier work failed."""
    tells_when_sent: bool = False
    """`was_sent` is to be called."""

    def __init__(self) -> None:
        self.answers: Sequence[Pending[Any]] = ()
        self.attempt = 0
        self.was_refused = False
        self.was_skipped = False
        self.error: RpcBackendError | None = None

    @abstractmethod
    def send(self, wire: Wire) -> Sequence[Pending[Any]]:
        """Send the messages and return what will be answered.

        Raises:
            RpcBackendError: it cannot be sent.
        """

    def was_sent(self) -> None:
        """It is on its way. Called without a lock."""

    def take_answers(self) -> None:
        """Everything is answered.

        Raises:
            RpcBackendError: it failed.
        """
        for answer in self.answers:
            answer.future.result()

    def settle(self) -> None:
        """It is finished, or failed with `error`: tell those who wait. Called without a lock."""

    def goes_round(self) -> bool:
        """It has waited for its gate for some time: whether it takes another way instead, and waits no more."""
        return False

    def send_again(self) -> None:
        """The worker did not do it; it will be sent once more."""
        self.was_refused = False

    @property
    def is_refused(self) -> bool:
        """Whether the worker said that it did nothing and wants it again, whole."""
        return self.was_refused

    @property
    def is_question(self) -> bool:
        """Whether nothing may be sent after it before its first answer."""
        return False

    @property
    def is_answered(self) -> bool:
        return all(answer.future.done() for answer in self.answers)


class Told(Work):
    """A command without an answer. `sent` is done when it is on its way, or will not go."""

    keeps_error = False
    tells_when_sent = True

    def __init__(self, command: Command[Any, None], request: Any) -> None:
        super().__init__()
        self.sent: Future[None] = Future()
        self._message = (command, request)

    def send(self, wire: Wire) -> Sequence[Pending[Any]]:
        wire.post(*self._message)
        return ()

    def was_sent(self) -> None:
        self.sent.set_result(None)

    def settle(self) -> None:
        if self.error is not None:  # it was not sent
            self.sent.set_result(None)


class Freed(Told):
    """A command without an answer that gives memory back."""

    despite_error = True


class Later(Work):
    """Holds what comes behind it until `gate` is done, and may then send a command; an error of the gate becomes the
    stream's."""

    def __init__(self, gate: Future[Any], command: Command[Any, None] | None = None, request: Any = None) -> None:
        super().__init__()
        self.gate = gate
        self._command = command
        self._request = request

    def send(self, wire: Wire) -> Sequence[Pending[Any]]:
        assert self.gate is not None, "it was given"
        self.gate.result()
        if self._command is not None:
            wire.post(self._command, self._request)
        return ()


class Collect(Work):
    """A round trip that takes an error from the worker which was already raised here."""

    despite_error = True

    def send(self, wire: Wire) -> Sequence[Pending[Any]]:
        return (wire.submit(SYNCHRONIZE, Empty()),)

    def take_answers(self) -> None:
        """Drop the error."""


class Awaited(Work):
    """Work whose caller waits for `done`."""

    def __init__(self) -> None:
        super().__init__()
        self.done: Future[None] = Future()

    def settle(self) -> None:
        self.done.set_result(None)


class Fence(Awaited):
    """A round trip behind everything before it: that of other work if it is under way and nothing came behind it."""

    despite_error = True

    def __init__(self) -> None:
        super().__init__()
        self._is_guest = False

    def send(self, wire: Wire) -> Sequence[Pending[Any]]:
        self._is_guest = wire.last_answer is not None
        return (wire.last_answer or wire.submit(SYNCHRONIZE, Empty()),)

    def take_answers(self) -> None:
        """An error in the answer to other work is that work's."""
        if not self._is_guest:
            super().take_answers()


class Synchronize(Fence):
    """A round trip that raises the errors before it."""

    despite_error = False
    takes_error = True


class Asked(Awaited, Generic[Reply]):
    """A command whose caller waits for the answer and raises errors."""

    takes_error = True

    def __init__(self, command: Command[Any, Reply], request: Any) -> None:
        super().__init__()
        self.command = command
        self._request = request
        self._answer: Answer[Reply] | None = None

    def send(self, wire: Wire) -> Sequence[Pending[Any]]:
        return (wire.submit(self.command, self._request),)

    def take_answers(self) -> None:
        self._answer = self.answers[0].future.result()

    def answer(self) -> Answer[Reply]:
        """Return the answer, when it is done. Raises its error."""
        if self.error is not None:
            raise self.error
        assert self._answer is not None, "what ends without an error has an answer"
        return self._answer


class AskedAlways(Asked[Reply]):
    """As `Asked`, but it runs on a failed stream too, and raises its own error only."""

    takes_error = False
    keeps_error = False
    despite_error = True
