"""One connection to another worker, of which this one is a client.

Belongs here: HELLO and PEER_JOIN, sending, what the other side says back. Must not be here: which links there are
(`peers`), where they may lead (`dial_rules`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rpc_backend.errors import (
    ChannelError,
    ConnectError,
    ErrorContext,
    LimitError,
    NegotiationError,
    RpcBackendError,
    SessionError,
    WorkerLostError,
)
from rpc_backend.fabric import offer_records, read_offers
from rpc_backend.interfaces import Channel, OnLost, OnMessage
from rpc_backend.protocol import (
    ClientConversation,
    Command,
    Endpoint,
    ErrorEvent,
    Greeting,
    Limits,
    NoticeEvent,
    ReplyEvent,
    encode_error,
    negotiate,
)
from rpc_backend.protocol.commands import GOODBYE, HELLO, PEER_BARRIER, PEER_JOIN, PEER_PUSH, SET_TENSOR
from rpc_backend.protocol.negotiation import LINKS_SINCE
from rpc_backend.protocol.peer_secrets import Role, is_proof, make_nonce, name_of, proof_of
from rpc_backend.protocol.records import Empty, Hello, HelloReply, PeerJoin, TensorRange
from rpc_backend.worker.config import WorkerConfig
from rpc_backend.worker.peer_jobs import CopyJob, Job, Origin, TicketJob, fail_job

Dial = Callable[[Endpoint, OnMessage, OnLost], Channel]
"""Connects to a worker. Raises ConnectError or EndpointError."""
Pause = Callable[[float], None]
"""Waits for some seconds, or, in a double, does not."""

OPEN_TIMEOUT_S = 6.0
_CLOSE_LINGER_S = 1.0
_REMEMBERED = 256
_LOG = logging.getLogger(__name__)


class PeerLink:
    """A link of one session to one worker. Any thread may call it; only `open` and `close` wait.

    The fabric's own thread of the connection sends, so a busy receiver holds up nobody but its own link.

    A link that does not open fails with the same words after the same time, whatever is or is not at the endpoint:
    a client cannot use this worker to look around in its network. What really happened is in this worker's log.
    """

    def __init__(self, endpoint: Endpoint, secret: bytes, greeting: Greeting, dial: Dial, config: WorkerConfig) -> None:
        self._endpoint = endpoint
        self._secret = secret
        self._greeting = greeting
        self._dial = dial
        self._heartbeat_ms = config.heartbeat_ms
        self._limit_nbytes = config.max_queued_nbytes
        self._max_push_nbytes = config.max_payload_nbytes
        self._conversation = ClientConversation(Limits(max_payload_nbytes=config.max_payload_nbytes))
        self._minor = 0
        self._lock = threading.RLock()
        self._channel: Channel | None = None
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._openers: list[Callable[[bool], None]] = []
        self._waiting: deque[Job] = deque()
        self._waiting_nbytes = 0
        self._sent: OrderedDict[int, Origin] = OrderedDict()
        self._copies: dict[int, CopyJob] = {}
        self._copying_nbytes = 0
        self._copying_limit_nbytes = 0
        self._is_ready = False
        self._broken: Exception | None = None
        self._lost: RpcBackendError | None = None

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._lost is not None

    @property
    def was_open(self) -> bool:
        """Whether it ever stood."""
        return self._is_ready

    def when_open(self, tell: Callable[[bool], None]) -> None:
        """Have `tell` called once it stands, or will not; now if that is known."""
        with self._lock:
            if not self._is_ready and self._lost is None:
                self._openers.append(tell)
                return
            stands = self._lost is None
        tell(stands)

    def open(self, pause: Pause = time.sleep) -> None:
        """Connect, greet, and send what waits; or tell all who wait that it failed. Does not raise."""
        deadline_s = time.monotonic() + OPEN_TIMEOUT_S
        try:
            self._connect(deadline_s)
        except Exception as error:
            if self._lost is None:
                _LOG.warning("cannot send to %s, which a client announced: %s", self._endpoint, error)
                self._drop_channel()
                pause(max(0.0, deadline_s - time.monotonic()))
            self._end(ConnectError("no worker that knows this client answered there"))
            return
        with self._lock:
            while self._waiting:
                self._send(self._waiting.popleft())
            self._waiting_nbytes = 0
            openers, self._openers = self._openers, []
        for tell in openers:
            tell(True)

    def post(self, job: Job) -> None:
        """Send a message, now or once the link is open. Does not raise: who must know is told."""
        with self._lock:
            if self._lost is not None:
                job.lost(self._lost)
            elif self._is_ready:
                self._send(job)
            elif self._waiting_nbytes + job.nbytes > self._limit_nbytes:
                job.lost(self._too_much(self._waiting_nbytes))
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
        self._end(WorkerLostError("the link was closed with its session"), _CLOSE_LINGER_S)

    def abort(self) -> None:
        """Close at once."""
        self._end(WorkerLostError("the link was closed with its worker"))

    # Opening

    def _connect(self, deadline_s: float) -> None:
        channel = self._dial(self._endpoint, self._on_message, self._on_lost)
        with self._lock:
            self._channel = channel
            if self._lost is not None:
                channel.abort()
                raise self._lost
        ours = self._greeting
        links = offer_records(channel.offer_links()) if ours.minor >= LINKS_SINCE else []
        hello = Hello(
            ours.major, ours.minor, ours.op_digest, ours.build, list(ours.abilities), self._heartbeat_ms, links
        )  # fmt: skip
        reply: HelloReply = self._ask(HELLO, hello, deadline_s)
        agreement = negotiate(ours, Greeting.of(reply))
        if links:
            channel.take_link(read_offers(reply.links))
        if agreement.minor < PEER_JOIN.since:
            raise NegotiationError(
                f"it takes no tensors from other workers: that needs minor {PEER_JOIN.since} of the protocol on both "
                f"sides, and they have {agreement.minor}"
            )
        with self._lock:
            self._conversation.agree(agreement.minor)
        self._minor = agreement.minor
        self._max_push_nbytes = min(self._max_push_nbytes, reply.max_payload_nbytes)
        self._copying_limit_nbytes = reply.max_queued_nbytes // 2
        nonce, name = make_nonce(), name_of(self._secret)
        join = PeerJoin(name, nonce, proof_of(self._secret, Role.SENDER, nonce))
        if not is_proof(self._ask(PEER_JOIN, join, deadline_s).proof, self._secret, Role.RECEIVER, nonce):
            raise SessionError("it does not know the secret of the client")
        with self._lock:
            if self._lost is not None or self._broken is not None:
                raise self._lost or WorkerLostError(str(self._broken))
            self._is_ready = True

    def _drop_channel(self) -> None:
        with self._lock:
            channel = self._channel
        if channel is not None:
            channel.abort()

    def _ask(self, command: Command[Any, Any], body: Any, deadline_s: float) -> Any:
        with self._lock:
            assert self._channel is not None, "it was dialled"
            self._channel.send(self._conversation.request(command, body)[1])
        try:
            answer = self._answers.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            raise ConnectError(f"it did not answer {command.name} in time; is it a worker of this project?") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    # Sending, with the lock held

    def _send(self, job: Job) -> None:
        if isinstance(job, CopyJob):
            self._send_copy(job)
        else:
            self._send_ticket(job)

    def _send_ticket(self, job: TicketJob) -> None:
        assert self._channel is not None, "the link is open"
        try:
            self._check(job)
            sequence, frames = self._conversation.request(job.command, job.body, payload=job.payload)
            self._sent[sequence] = job.origin
            if len(self._sent) > _REMEMBERED:
                self._sent.popitem(last=False)
            self._channel.send(frames)
        except ChannelError as error:
            job.lost(self._located(error))
        except RpcBackendError as error:
            job.lost(self._located(error))
            if job.command is PEER_PUSH and self._minor >= PEER_PUSH.since:
                self._send(fail_job(job.ticket, encode_error(error), job.origin))

    def _check(self, job: TicketJob) -> None:
        assert self._channel is not None, "the link is open"
        if self._minor < job.command.since:
            raise NegotiationError(
                f"it takes no tensors under tickets: that needs minor {job.command.since} of the protocol on both "
                f"sides, and they have {self._minor}"
            )
        if job.nbytes > self._max_push_nbytes:
            raise LimitError(
                f"a tensor of {job.nbytes} bytes is above the {self._max_push_nbytes} that one message to "
                f"{self._endpoint} may carry; use smaller batches"
            )
        if job.nbytes and self._channel.queued_nbytes + job.nbytes > self._limit_nbytes:
            raise self._too_much(self._channel.queued_nbytes)

    def _send_copy(self, job: CopyJob) -> None:
        """Send the parts of a tensor, and ask for a sign behind them."""
        assert self._channel is not None, "the link is open"
        if job.nbytes and self._copying_nbytes + job.nbytes > self._copying_limit_nbytes:
            job.lost(self._too_much(self._copying_nbytes))
            return
        try:
            for start in range(0, job.nbytes, self._max_push_nbytes):
                part = job.data[start : start + self._max_push_nbytes]
                body = TensorRange(job.target, start, part.nbytes)
                self._channel.send(self._conversation.request(SET_TENSOR, body, stream=job.device, payload=part)[1])
            sequence, frames = self._conversation.request(PEER_BARRIER, Empty(), stream=job.device)
        except RpcBackendError as error:
            job.lost(error)
            return
        self._copies[sequence] = job
        self._copying_nbytes += job.nbytes
        with suppress(ChannelError):  # it was just lost, and `_end` tells so
            self._channel.send(frames)

    # What the other side says

    def _on_message(self, frames: list[memoryview]) -> None:
        with self._lock:
            event = self._conversation.receive(frames)
            copy = None if isinstance(event, NoticeEvent) else self._copies.pop(event.request, None)
            origin = self._sent.get(event.request)
            self._copying_nbytes -= 0 if copy is None else copy.nbytes
        if copy is not None:
            if isinstance(event, ErrorEvent):
                _LOG.info("worker %s did not take a copy: %s", self._endpoint, event.error)
            copy.done(isinstance(event, ReplyEvent))
        elif not isinstance(event, NoticeEvent):
            self._answers.put(event.error if isinstance(event, ErrorEvent) else event.body)
        elif origin is not None:
            origin.report(self._located(event.error))

    def _on_lost(self, error: Exception) -> None:
        with self._lock:
            self._broken, is_ready = error, self._is_ready
        self._answers.put(error)
        if is_ready:
            self._end(error if isinstance(error, RpcBackendError) else WorkerLostError(str(error)))

    def _end(self, error: RpcBackendError, linger_s: float | None = None) -> None:
        """Tell all whose tensors wait, and the sender of the last one that left: it may not have arrived."""
        located = self._located(error)
        with self._lock:
            was_lost, self._lost = self._lost is not None, self._lost or located
            channel, waiting = self._channel, list(self._waiting)
            self._waiting.clear()
            in_doubt = list(self._sent.values())[-1:]
            waiting += self._copies.values()
            self._sent.clear()
            self._copies.clear()
            openers, self._openers = self._openers, []
        self._answers.put(located)
        if channel is not None and linger_s is None:
            channel.abort()
        elif channel is not None:
            channel.close(linger_s or 0.0)
        for tell in openers:
            tell(False)
        if not was_lost:
            for job in waiting:
                job.lost(located)
            for origin in in_doubt:
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
