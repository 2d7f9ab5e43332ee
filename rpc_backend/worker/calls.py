"""One command on its way through a worker, and the mark of the function that answers it.

Belongs here: what handlers take and return, and the check that every command has one. Must not be here:
single commands (`handlers`), or when they run (`executor`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar

from rpc_backend.errors import LocalProtocolError, SessionError
from rpc_backend.protocol import COMMANDS, Command, RequestEvent
from rpc_backend.protocol.records import Failure
from rpc_backend.worker.links import Link
from rpc_backend.worker.sessions import Session

Reply = TypeVar("Reply")

_MARK = "handled_command"


@dataclass(frozen=True, slots=True)
class Call:
    """A request that came whole. `owner` is None for HELLO only; `nbytes` is what it takes to keep it waiting.

    `mark` is what the handler's `arrive` noted.
    """

    link: Link
    event: RequestEvent
    owner: Session | None
    nbytes: int
    mark: int = 0

    @property
    def command(self) -> Command[Any, Any]:
        return self.event.command

    @property
    def request(self) -> Any:
        """The record of the command's row."""
        return self.event.body

    @property
    def stream(self) -> int:
        return self.event.stream

    @property
    def payload(self) -> memoryview:
        """The payload, a view of the received frame; empty if the command has none."""
        return memoryview(b"") if self.event.payload is None else self.event.payload

    @property
    def session(self) -> Session:
        """The session of the caller.

        Raises:
            SessionError: it has none.
        """
        if self.owner is None:
            raise SessionError("this connection has no session; the first command must be HELLO")
        return self.owner


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Reply]):
    """A reply that is more than its record: with a payload, or with work that begins once it is sent."""

    reply: Reply
    payload: memoryview | None = None
    afterwards: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Promise(Generic[Reply]):
    """A reply that comes later, while the stream goes on: `start(answer)` sees to it that `answer` is called once.

    `start` must not raise; `answer` may be called on any thread, also before `start` returns.
    """

    start: Callable[[Callable[[Reply], None]], None]


HandlerFunction = Callable[[Any, Call], Any]
Arrive = Callable[[Any, Call], int]
Prepare = Callable[[Any, Call], None]
WaitS = Callable[[Any, Call], float]
Skipped = Callable[[Any, Call, Failure | None], None]


@dataclass(frozen=True, slots=True)
class Handler:
    """The function of a command, and what else a stream command may need.

    `despite_error`: it runs on a stream that waits to report an error. `arrive` runs when it comes, before it is
    queued, and what it returns becomes `Call.mark`. If that is not 0, `prepare` runs when the command is next in its
    stream, before any wait; what it raises is dropped, the function will meet it too. `wait_s` says how many seconds at
    most the stream must still be held before it can run; it must not raise. `skipped` is called instead of the function
    when the stream has failed, or, with None, when the session has ended (on any thread then); it must not raise.
    """

    command: Command[Any, Any]
    function: HandlerFunction
    despite_error: bool = False
    arrive: Arrive | None = None
    prepare: Prepare | None = None
    wait_s: WaitS | None = None
    skipped: Skipped | None = None


def handles(
    command: Command[Any, Any],
    *,
    despite_error: bool = False,
    arrive: Arrive | None = None,
    prepare: Prepare | None = None,
    wait_s: WaitS | None = None,
    skipped: Skipped | None = None,
) -> Callable[[HandlerFunction], HandlerFunction]:
    """Mark the function that runs a command: `function(state, call)` returns the reply record, an `Outcome`
    or a `Promise`.

    The options are those of `Handler`.
    """

    def mark(function: HandlerFunction) -> HandlerFunction:
        setattr(function, _MARK, Handler(command, function, despite_error, arrive, prepare, wait_s, skipped))
        return function

    return mark


def collect_handlers(
    modules: Iterable[ModuleType], commands: Mapping[int, Command[Any, Any]] = COMMANDS
) -> dict[int, Handler]:
    """Return the handler of each code.

    Raises:
        LocalProtocolError: a command without a handler, or with two.
    """
    found: dict[int, Handler] = {}
    for module in modules:
        for value in vars(module).values():
            handler = getattr(value, _MARK, None)
            if not isinstance(handler, Handler):
                continue
            if handler.command.code in found:
                raise LocalProtocolError(f"two handlers for the command {handler.command.name}")
            found[handler.command.code] = handler
    missing = [row.name for code, row in commands.items() if code not in found]
    if missing:
        raise LocalProtocolError(f"no handler for the commands {', '.join(missing)}")
    return found
