"""One session at the worker of this process: commands out, answers in.

Belongs here: the conversation, and waiting for answers. Must not be here: what a command is sent for.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from rpc_backend.plugin_api import (
    ClientConversation,
    Command,
    DeadlineError,
    ErrorEvent,
    Limits,
    LocalDial,
    NoticeEvent,
    ReplyEvent,
    RpcBackendError,
    commands,
    op_table_digest,
    own_greeting,
    records,
)

_BUILD = "ggml-rpc gateway"
_ANSWER_LIMIT_S = 600.0
_OVERHEAD_NBYTES = 1024
_MARKS = 2


class WorkerSession:
    """Used by one thread; `on_failure` is called, on any thread, when a command that has no answer failed."""

    def __init__(self, dial: LocalDial, on_failure: Callable[[], None]) -> None:
        """Open the session. Raises WorkerLostError: the worker is closing."""
        self.failure: RpcBackendError | None = None
        self._on_failure = on_failure
        self._conversation = ClientConversation(Limits())
        self._lock = threading.Lock()
        self._answers: queue.SimpleQueue[ReplyEvent | ErrorEvent | RpcBackendError] = queue.SimpleQueue()
        self._early: dict[int, ReplyEvent | ErrorEvent] = {}
        self._begun: set[int] = set()
        self._marks: dict[int, deque[int]] = {}
        self._unmarked_nbytes: dict[int, int] = {}
        self._window_nbytes = 0
        self._channel = dial(self._take, self._fail)
        ours = own_greeting(op_table_digest(), _BUILD)
        hello = records.Hello(ours.major, ours.minor, ours.op_digest, ours.build, [], 0)
        self.hello: records.HelloReply = self.ask(commands.HELLO, hello).body
        self._conversation.agree(min(ours.minor, self.hello.minor))
        self._window_nbytes = self.hello.max_queued_nbytes // len(self.hello.devices) // (2 * _MARKS)

    @property
    def n_devices(self) -> int:
        return len(self.hello.devices)

    @property
    def chunk_nbytes(self) -> int:
        """The largest payload that should travel in one command."""
        return min(self.hello.max_payload_nbytes, self._window_nbytes, 1 << 20)

    def tell(self, command: Command[Any, Any], body: Any, *, stream: int, payload: memoryview | None = None) -> None:
        """Send a command that has no answer; the payload must not change any more.

        Raises what an earlier one failed with.
        """
        nbytes = self._send(command, body, stream, payload)[1]
        self._unmarked_nbytes[stream] = self._unmarked_nbytes.get(stream, 0) + nbytes + _OVERHEAD_NBYTES
        if self._unmarked_nbytes[stream] >= self._window_nbytes:
            self._mark(stream)

    def ask(self, command: Command[Any, Any], body: Any, *, stream: int = 0) -> ReplyEvent:
        """Send a command and return its answer. Raises the error that came instead, or that of an earlier command."""
        return self.wait(self._send(command, body, stream, None)[0], command)

    def begin(self, command: Command[Any, Any], body: Any, *, stream: int, payload: memoryview | None = None) -> int:
        """Send a command that `wait` will wait for; an error that comes before is a failure of the session."""
        return self._send(command, body, stream, payload, is_begun=True)[0]

    def close(self) -> None:
        """Close the session. Never raises."""
        self._channel.abort()

    def _mark(self, stream: int) -> None:
        """Let no more be queued at the worker than a session may: wait for what was sent some time ago."""
        marks = self._marks.setdefault(stream, deque())
        marks.append(self.begin(commands.SYNCHRONIZE, records.Empty(), stream=stream))
        self._unmarked_nbytes[stream] = 0
        if len(marks) == _MARKS:
            self.wait(marks.popleft(), commands.SYNCHRONIZE)

    def _send(
        self,
        command: Command[Any, Any],
        body: Any,
        stream: int,
        payload: memoryview | None,
        *,
        is_begun: bool = False,
    ) -> tuple[int, int]:
        if self.failure is not None:
            raise self.failure
        with self._lock:
            sequence, frames = self._conversation.request(command, body, stream=stream, payload=payload)
            if is_begun:
                self._begun.add(sequence)
        self._channel.send(frames)
        return sequence, sum(len(frame) for frame in frames)

    def wait(self, sequence: int, command: Command[Any, Any]) -> ReplyEvent:
        """Return the answer to what was sent. Raises as `ask`."""
        while sequence not in self._early:
            try:
                item = self._answers.get(timeout=_ANSWER_LIMIT_S)
            except queue.Empty as error:
                raise DeadlineError(f"{command.name} was not answered within {_ANSWER_LIMIT_S:.0f} s") from error
            if isinstance(item, RpcBackendError):
                raise item
            self._early[item.request] = item
        event = self._early.pop(sequence)
        if isinstance(event, ErrorEvent):
            raise event.error
        return event

    def _take(self, frames: list[memoryview]) -> None:
        with self._lock:
            event = self._conversation.receive(frames)
            was_begun = not isinstance(event, NoticeEvent) and event.request in self._begun
            if was_begun:
                self._begun.discard(event.request)
        if isinstance(event, NoticeEvent) or (was_begun and isinstance(event, ErrorEvent)):
            self._fail(event.error)
        else:
            self._answers.put(event)

    def _fail(self, error: Exception) -> None:
        assert isinstance(error, RpcBackendError), "channels are lost with errors of ours"
        self.failure = self.failure or error
        self._answers.put(error)
        self._on_failure()
