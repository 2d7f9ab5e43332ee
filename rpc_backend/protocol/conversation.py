"""What each side of a connection may say next: two pure objects, frames in, events out.

Belongs here: sequence numbers, the match of requests and answers, what the command table demands. Must not be
here: sockets, clocks, threads, sessions, what a command does.

One object per connection and side, used by one thread at a time: the frames that `request`, `reply`, `fail` and
`notify` return must be sent in the order of the calls, all frames of one call in one send. `receive` takes one whole
message. Whatever raises has changed nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rpc_backend.errors import (
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    RpcBackendError,
    SessionError,
)
from rpc_backend.protocol.codec import decode_record, encode_record
from rpc_backend.protocol.commands import COMMANDS, HELLO, Command, Payload
from rpc_backend.protocol.failures import decode_error
from rpc_backend.protocol.framing import Frame, Frames, Header, Kind, Limits, RawMessage, decode_message, encode_message
from rpc_backend.protocol.records import Failure

Request = TypeVar("Request")
Reply = TypeVar("Reply")

FIRST_SEQUENCE = 1


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A request that came whole. `payload` is a view into the received frame, None where the row has none."""

    sequence: int
    stream: int
    command: Command[Any, Any]
    body: Any
    payload: memoryview | None


@dataclass(frozen=True, slots=True)
class BadRequestEvent:
    """A request that came whole but cannot be run: answer it with `WorkerConversation.fail`.

    `command` is None where the code is unknown.
    """

    sequence: int
    stream: int
    code: int
    command: Command[Any, Any] | None
    error: RpcBackendError


@dataclass(frozen=True, slots=True)
class ReplyEvent:
    """The answer to request `request`."""

    request: int
    command: Command[Any, Any]
    body: Any
    payload: memoryview | None


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """Request `request`, which expects a reply, failed."""

    request: int
    command: Command[Any, Any]
    error: RpcBackendError


@dataclass(frozen=True, slots=True)
class NoticeEvent:
    """Something without a reply failed on a stream; raised at the stream's next synchronising call.

    `request` is the sequence number of the request that failed, 0 if the worker did not say.
    """

    stream: int
    code: int
    error: RpcBackendError
    request: int = 0


@dataclass(frozen=True, slots=True)
class _Open:
    """A request that is still to be answered, or, with `command` None, whose code was unknown."""

    code: int
    command: Command[Any, Any] | None
    stream: int


class _Side:
    """What both sides count: one sequence per direction, without gaps."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.minor: int | None = None
        self._next_out = FIRST_SEQUENCE
        self._next_in = FIRST_SEQUENCE

    def agree(self, minor: int) -> None:
        """HELLO went well: allow every command of this minor version."""
        self.minor = minor

    def _encode(self, kind: Kind, code: int, ref: int, body: Any, payload: Frame | None) -> list[Frame]:
        payloads = () if payload is None else (payload,)
        frames = encode_message(kind, code, self._next_out, ref, encode_record(body), payloads, self.limits)
        self._next_out += 1
        return frames

    def _decode(self, frames: Frames) -> RawMessage:
        message = decode_message(frames, self.limits)
        if message.header.sequence != self._next_in:
            raise RemoteProtocolError(
                f"message {message.header.sequence} came where message {self._next_in} was due: one was lost, "
                "doubled or taken apart"
            )
        return message

    def _not_yet(self, command: Command[Any, Any]) -> str | None:
        if command is HELLO:
            return None if self.minor is None else "HELLO is said once, at the start of a connection"
        if self.minor is None:
            return f"{command.name} came before HELLO opened a session"
        if command.since > self.minor:
            return f"{command.name} needs protocol minor {command.since}, this connection uses {self.minor}"
        return None


class ClientConversation(_Side):
    """The client's half: makes requests, understands what comes back."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits or Limits())
        self._open: dict[int, Command[Any, Any]] = {}

    @property
    def n_open(self) -> int:
        """How many requests still wait for their answer."""
        return len(self._open)

    def request(
        self, command: Command[Request, Any], body: Request, *, stream: int = 0, payload: Frame | None = None
    ) -> tuple[int, list[Frame]]:
        """Return the sequence number and the frames of a request; the payload is referenced, not copied.

        Raises:
            LocalProtocolError: wrong record, payload where the row has none or missing, or not yet allowed.
            LimitError: too large.
        """
        refusal = self._not_yet(command)
        if refusal:
            raise LocalProtocolError(refusal)
        _check_record(command, "request", command.request, body)
        _check_payload(command, Payload.REQUEST, payload, LocalProtocolError)
        sequence = self._next_out
        frames = self._encode(Kind.REQUEST, command.code, stream, body, payload)
        if command.reply is not None:
            self._open[sequence] = command
        return sequence, frames

    def receive(self, frames: Frames) -> ReplyEvent | ErrorEvent | NoticeEvent:
        """Take one whole message.

        Raises:
            RemoteProtocolError, LimitError: the worker broke the protocol; the connection is of no more use.
        """
        message = self._decode(frames)
        header = message.header
        if header.kind is Kind.REQUEST:
            raise RemoteProtocolError("the worker sent a request; only clients do")
        event = self._reply(message) if header.kind is Kind.REPLY else self._failure(message)
        self._next_in += 1
        if not isinstance(event, NoticeEvent):
            del self._open[event.request]
        return event

    def _reply(self, message: RawMessage) -> ReplyEvent:
        header = message.header
        command = self._open.get(header.ref)
        if command is None or command.code != header.code:
            raise RemoteProtocolError(f"a reply to request {header.ref} with code {header.code}, which is not open")
        assert command.reply is not None, "only requests with a reply are kept open"
        payload = _single(command, Payload.REPLY, message)
        return ReplyEvent(header.ref, command, decode_record(command.reply, header.body), payload)

    def _failure(self, message: RawMessage) -> ErrorEvent | NoticeEvent:
        header = message.header
        if message.payloads:
            raise RemoteProtocolError("an error carries no payload")
        command = COMMANDS.get(header.code)
        failure = decode_record(Failure, header.body)
        error = decode_error(failure, command=command.name if command else "")
        if header.kind is Kind.NOTICE:
            return NoticeEvent(header.ref, header.code, error, failure.request)
        opened = self._open.get(header.ref)
        if opened is not None and opened.code == header.code:
            return ErrorEvent(header.ref, opened, error)
        if opened is None and command is not None and command.reply is None and header.ref < self._next_out:
            return NoticeEvent(
                0, header.code, error, header.ref
            )  # a worker that does not know a command without a reply
        raise RemoteProtocolError(f"an error for request {header.ref} with code {header.code}, which is not open")


class WorkerConversation(_Side):
    """The worker's half: understands requests, answers each that expects it exactly once."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits or Limits())
        self._open: dict[int, _Open] = {}

    @property
    def n_open(self) -> int:
        """How many requests are still to be answered."""
        return len(self._open)

    def receive(self, frames: Frames) -> RequestEvent | BadRequestEvent:
        """Take one whole message.

        An unknown command, or a known one with a wrong body or payload, is a BadRequestEvent: the connection lives.

        Raises:
            RemoteProtocolError, LimitError: frames, header or sequence are wrong; close the connection.
        """
        message = self._decode(frames)
        if message.header.kind is not Kind.REQUEST:
            raise RemoteProtocolError(f"a client sent a {message.header.kind.name}; clients send requests only")
        event = self._event(message)
        self._next_in += 1
        command = event.command
        if command is None or command.reply is not None:
            code = command.code if command else message.header.code
            self._open[event.sequence] = _Open(code, command, event.stream)
        return event

    def reply(self, sequence: int, body: Any, payload: Frame | None = None) -> list[Frame]:
        """Return the frames of the one answer to a request; the payload is referenced, not copied.

        Raises:
            LocalProtocolError: the request is not open (answered, or never to be answered), wrong record or payload.
            LimitError: too large.
        """
        request = self._open.get(sequence)
        if request is None or request.command is None or request.command.reply is None:
            raise LocalProtocolError(f"request {sequence} has been answered, or expects no reply")
        _check_record(request.command, "reply", request.command.reply, body)
        _check_payload(request.command, Payload.REPLY, payload, LocalProtocolError)
        frames = self._encode(Kind.REPLY, request.code, sequence, body, payload)
        del self._open[sequence]
        return frames

    def fail(self, event: RequestEvent | BadRequestEvent, failure: Failure) -> list[Frame]:
        """Return the frames that say a request failed: its answer, or a notice where it expects none.

        Raises:
            LocalProtocolError: it expects an answer and has been answered.
        """
        command = event.command
        if command is not None and command.reply is None:
            return self.notify(event.stream, failure, command.code, event.sequence)
        request = self._open.get(event.sequence)
        if request is None:
            raise LocalProtocolError(f"request {event.sequence} has been answered")
        frames = self._encode(Kind.ERROR, request.code, event.sequence, failure, None)
        del self._open[event.sequence]
        return frames

    def notify(self, stream: int, failure: Failure, code: int, request: int = 0) -> list[Frame]:
        """Return the frames of an unasked error of a stream; `code` and `request` are of the command that failed."""
        return self._encode(Kind.NOTICE, code, stream, replace(failure, request=request), None)

    def _event(self, message: RawMessage) -> RequestEvent | BadRequestEvent:
        header = message.header
        command = COMMANDS.get(header.code)
        if command is None:
            error = RemoteProtocolError(f"this worker knows no command with code {header.code}")
            return BadRequestEvent(header.sequence, header.ref, header.code, None, error)
        try:
            return self._request_event(command, header, message)
        except (ProtocolError, SessionError) as error:
            located = error.located(command=command.name)
            return BadRequestEvent(header.sequence, header.ref, header.code, command, located)

    def _request_event(self, command: Command[Any, Any], header: Header, message: RawMessage) -> RequestEvent:
        refusal = self._not_yet(command)
        if refusal:
            raise SessionError(refusal)
        body = decode_record(command.request, header.body)
        payload = _single(command, Payload.REQUEST, message)
        return RequestEvent(header.sequence, header.ref, command, body, payload)


def _single(command: Command[Any, Any], direction: Payload, message: RawMessage) -> memoryview | None:
    payload = message.payloads[0] if message.payloads else None
    _check_payload(command, direction, payload, RemoteProtocolError)
    if len(message.payloads) > 1:
        raise RemoteProtocolError(f"{command.name} carries one payload, not {len(message.payloads)}")
    return payload


def _check_payload(
    command: Command[Any, Any], direction: Payload, payload: Frame | None, error_class: type[ProtocolError]
) -> None:
    expected = command.payload.covers(direction)
    if expected and payload is None:
        raise error_class(f"a {direction.value} of {command.name} must carry a payload")
    if not expected and payload is not None:
        raise error_class(f"a {direction.value} of {command.name} must not carry a payload")


def _check_record(command: Command[Any, Any], what: str, cls: type, body: Any) -> None:
    if type(body) is not cls:
        raise LocalProtocolError(f"a {what} of {command.name} is a {cls.__name__}, not a {type(body).__name__}")
