"""One connection to another worker, of which this one is a client.

Belongs here: HELLO, sending, what the other side says back. Must not be here: which links there are (`peers`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rpc_backend.errors import (
    ChannelError,
    ConnectError,
    ErrorContext,
    LimitError,
    NegotiationError,
    RpcBackendError,
    WorkerLostError,
)
from rpc_backend.interfaces import Channel, OnLost, OnMessage
from rpc_backend.protocol import (
    ClientConversation,
    Command,
    Endpoint,
    ErrorEvent,
    Greeting,
    Limits,
    NoticeEvent,
    encode_error,
    negotiate,
)
from rpc_backend.protocol.codec import encode_record
from rpc_backend.protocol.commands import GOODBYE, HELLO, PEER_FAIL, PEER_PUSH
from rpc_backend.protocol.records import Empty, Failure, Hello, HelloReply, PeerFail
from rpc_backend.worker.config import WorkerConfig
from rpc_backend.worker.links import Link
from rpc_backend.worker.sessions import Session

Dial = Callable[[Endpoint, OnMessage, OnLost], Channel]
"""Connects to a worker. Raises ConnectError or EndpointError."""

HELLO_TIMEOUT_S = 10.0
_CLOSE_LINGER_S = 1.0
_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Origin:
    """The run of a task whose result is sent, for errors: where its client is told, and of which request."""

    session: Session
    link: Link
    stream: int
    request: int

    def report(self, error: RpcBackendError) -> None:
        """Tell the client that a result could not be sent."""
        if not self.session.closed:
            failure = encode_error(error, command=PEER_PUSH.name)
            self.link.notify(self.stream, failure, PEER_PUSH.code, self.request)


@dataclass(frozen=True, slots=True)
class Job:
    """One message to another worker; both commands have no reply."""

    command: Command[Any, None]
    body: Any
    ticket: bytes
    origin: Origin
    payload: memoryview | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self.payload is None else self.payload.nbytes


def fail_job(ticket: bytes, failure: Failure, origin: Origin) -> Job:
    """Return the message that says why the tensor of a ticket will not come."""
    return Job(PEER_FAIL, PeerFail(ticket, encode_record(failure)), ticket, origin)


class PeerLink:
    """A link of one session to one worker. Any thread may call it; only `open` and `close` wait.

    The fabric's own thread of the connection sends, so a busy receiver holds up nobody but its own link.
    """

    def __init__(self, endpoint: Endpoint, greeting: Greeting, dial: Dial, config: WorkerConfig) -> None:
        self._endpoint = endpoint
        self._greeting = greeting
        self._dial = dial
        self._heartbeat_ms = config.heartbeat_ms
        self._limit_nbytes = config.max_queued_nbytes
        self._max_push_nbytes = config.max_payload_nbytes
        self._conversation = ClientConversation(Limits(max_payload_nbytes=config.max_payload_nbytes))
        self._lock = threading.RLock()
        self._channel: Channel | None = None
        self._waiting: deque[Job] = deque()
        self._waiting_nbytes = 0
        self._sent: OrderedDict[int, Origin] = OrderedDict()
        self._answered = threading.Event()
        self._answer: HelloReply | RpcBackendError | None = None
        self._is_ready = False
        self._lost: RpcBackendError | None = None

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._lost is not None

    def open(self) -> None:
        """Connect, greet, and send what waits; or tell all who wait why not. Does not raise."""
        try:
            channel = self._dial(self._endpoint, self._on_message, self._on_lost)
            self._greet(channel)
        except Exception as error:
            known = error if isinstance(error, RpcBackendError) else ConnectError(f"{type(error).__name__}: {error}")
            self._end(known)
            return
        with self._lock:
            self._is_ready = True
            while self._waiting:
                self._send(self._waiting.popleft())
            self._waiting_nbytes = 0

    def post(self, job: Job) -> None:
        """Send a message, now or once the link is open. Does not raise: who must know is told."""
        with self._lock:
            if self._lost is not None:
                job.origin.report(self._lost)
            elif self._is_ready:
                self._send(job)
            elif self._waiting_nbytes + job.nbytes > self._limit_nbytes:
                job.origin.report(self._too_much(self._waiting_nbytes))
            else:
                self._waiting.append(job)
                self._waiting_nbytes += job.nbytes

    def close(self) -> None:
        """Say GOODBYE and close; what is queued is still sent, for at most a second."""
        with self._lock:
            channel = self._channel
            if channel is not None and self._is_ready and self._lost is None:
                with suppress(ChannelError):  # it may just have gone
                    channel.send(self._conversation.request(GOODBYE, Empty())[1])
            self._lost = self._lost or WorkerLostError("the link was closed with its session")
        if channel is not None:
            channel.close(_CLOSE_LINGER_S)

    def abort(self) -> None:
        """Close at once."""
        with self._lock:
            self._lost = self._lost or WorkerLostError("the link was closed with its worker")
            channel = self._channel
        if channel is not None:
            channel.abort()

    def _greet(self, channel: Channel) -> None:
        with self._lock:
            self._channel = channel
            if self._lost is not None:
                raise self._lost
            hello = Hello(
                self._greeting.major,
                self._greeting.minor,
                self._greeting.op_digest,
                self._greeting.build,
                list(self._greeting.abilities),
                self._heartbeat_ms,
            )
            channel.send(self._conversation.request(HELLO, hello)[1])
        if not self._answered.wait(HELLO_TIMEOUT_S):
            raise ConnectError(f"it did not answer HELLO within {HELLO_TIMEOUT_S:g} s; is it a worker of this project?")
        if not isinstance(self._answer, HelloReply):
            raise self._answer or ConnectError("it went away before HELLO was answered")
        agreement = negotiate(self._greeting, Greeting.of(self._answer))
        if agreement.minor < PEER_PUSH.since:
            raise NegotiationError(
                f"it takes no tensors from other workers: that needs minor {PEER_PUSH.since} of the protocol on both "
                f"sides, and they have {agreement.minor}"
            )
        self._max_push_nbytes = min(self._max_push_nbytes, self._answer.max_payload_nbytes)
        with self._lock:
            self._conversation.agree(agreement.minor)

    def _send(self, job: Job) -> None:
        assert self._channel is not None, "the link is open"
        try:
            if job.nbytes > self._max_push_nbytes:
                raise LimitError(
                    f"a tensor of {job.nbytes} bytes is above the {self._max_push_nbytes} that one message to "
                    f"{self._endpoint} may carry; use smaller batches"
                )
            if job.nbytes and self._channel.queued_nbytes + job.nbytes > self._limit_nbytes:
                raise self._too_much(self._channel.queued_nbytes)
            self._transmit(job)
        except ChannelError as error:
            job.origin.report(self._located(error))
        except RpcBackendError as error:
            job.origin.report(self._located(error))
            if job.command is PEER_PUSH:
                self._send(fail_job(job.ticket, encode_error(error), job.origin))

    def _transmit(self, job: Job) -> None:
        assert self._channel is not None, "the link is open"
        sequence, frames = self._conversation.request(job.command, job.body, payload=job.payload)
        self._sent[sequence] = job.origin
        if len(self._sent) > _REMEMBERED:
            self._sent.popitem(last=False)
        self._channel.send(frames)

    def _on_message(self, frames: list[memoryview]) -> None:
        with self._lock:
            event = self._conversation.receive(frames)
            origin = self._sent.get(event.request)
        if isinstance(event, NoticeEvent):
            if origin is not None:
                origin.report(self._located(event.error))
            return
        self._answer = event.error if isinstance(event, ErrorEvent) else event.body
        self._answered.set()

    def _on_lost(self, error: Exception) -> None:
        self._end(error if isinstance(error, RpcBackendError) else WorkerLostError(str(error)))

    def _end(self, error: RpcBackendError) -> None:
        """Tell all whose tensors wait, and the sender of the last one that left: it may not have arrived."""
        located = self._located(error)
        with self._lock:
            was_lost, self._lost = self._lost is not None, self._lost or located
            channel, waiting = self._channel, list(self._waiting)
            self._waiting.clear()
            in_doubt = list(self._sent.values())[-1:]
            self._sent.clear()
        self._answer = self._answer or located
        self._answered.set()
        if channel is not None:
            channel.abort()
        if was_lost:
            return
        for origin in [job.origin for job in waiting] or in_doubt:
            origin.report(located)

    def _too_much(self, queued_nbytes: int) -> LimitError:
        return LimitError(
            f"{queued_nbytes} bytes wait to be sent to {self._endpoint}, which takes them too slowly; the limit is "
            f"{self._limit_nbytes}, keep fewer steps under way"
        )

    def _located(self, error: RpcBackendError) -> RpcBackendError:
        """Return a new error that says which link it is about."""
        context = error.context if error.context.worker else ErrorContext(worker=str(self._endpoint))
        return type(error)(f"sending to worker {self._endpoint}: {error.message}", context=context)
