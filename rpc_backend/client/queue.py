"""The commands of one worker stream, in order, with a bounded part under way.

Belongs here: order, the window of unacknowledged bytes, the error that waits for a synchronising call. Must not
be here: tensors (`transfers`), or messages (`dispatcher`).

A worker has one stream per device; everything a client does on that device goes through one queue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from rpc_backend.client.dispatcher import Answer, Dispatcher, Pending
from rpc_backend.errors import RpcBackendError
from rpc_backend.interfaces import Ticket
from rpc_backend.protocol import Command, Frame
from rpc_backend.protocol.commands import SYNCHRONIZE
from rpc_backend.protocol.records import Empty, Result

Request = TypeVar("Request")
Reply = TypeVar("Reply")

_FENCE_EVERY_COMMANDS = 1024


class CommandQueue:
    """The order of commands on one device. Any thread may call it; calls of several threads take turns."""

    def __init__(self, dispatcher: Dispatcher, stream: int, *, window_nbytes: int) -> None:
        """`window_nbytes` is how many bytes may go out before the worker is asked for a sign; twice that may be
        unacknowledged."""
        self.dispatcher = dispatcher
        self.stream = stream
        self._window_nbytes = window_nbytes
        self._lock = threading.RLock()
        self._unfenced_nbytes = 0
        self._unfenced_commands = 0
        self._fences: deque[Pending[Empty]] = deque()
        self._asked: tuple[Pending[Result], Callable[[], None]] | None = None
        self._error: RpcBackendError | None = None
        self._is_freeing = False

    def post(
        self, command: Command[Request, None], request: Request, payload: Frame | None = None, *, nbytes: int = 0
    ) -> Ticket | None:
        """Queue a command without reply; `nbytes` counts towards the window.

        Returns None and sends nothing while an error waits to be raised. Otherwise the ticket says when
        `payload` may change.
        """
        with self._lock:
            self._settle_question()
            if self._error is not None:
                return None
            ticket = self.dispatcher.post(command, request, payload, stream=self.stream)
            self._count(nbytes)
            return ticket

    def free(self, command: Command[Request, None], request: Request) -> None:
        """Queue a command without reply that gives memory back; the worker runs it on a failed stream too."""
        with self._lock:
            self._settle_question()
            self.dispatcher.post(command, request, stream=self.stream)
            self._is_freeing = True

    def call(self, command: Command[Request, Reply], request: Request) -> Answer[Reply]:
        """Run a command and return its answer, when all before it is done.

        Raises:
            RpcBackendError: the answer, or an error of an earlier command; it is raised once.
        """
        with self._lock:
            self._settle()
            self._raise_error()
            return self.dispatcher.wait(self.dispatcher.submit(command, request, stream=self.stream))

    def call_always(self, command: Command[Request, Reply], request: Request) -> Reply:
        """Run a command that the worker runs on a failed stream too. Raises its own errors only."""
        with self._lock:
            self._settle_question()
            return self.dispatcher.call(command, request, stream=self.stream)

    def ask(self, command: Command[Request, Result], request: Request, otherwise: Callable[[], None]) -> None:
        """Queue a command that may answer False; `otherwise` is then called before the next command goes out."""
        with self._lock:
            self._settle()
            if self._error is None:
                self._asked = (self.dispatcher.submit(command, request, stream=self.stream), otherwise)

    def settle(self) -> None:
        """Return when all queued so far is done; an error of it waits for the next synchronising call."""
        with self._lock:
            self._settle_question()
            self._add_fence()
            self._settle()

    def settle_frees(self) -> None:
        """As `settle`, if memory is being given back; otherwise return at once."""
        with self._lock:
            if self._is_freeing:
                self.settle()
                self._is_freeing = False

    def synchronize(self) -> None:
        """Return when the worker has finished all queued before. Raises as `call`."""
        self.call(SYNCHRONIZE, Empty())

    def _settle(self) -> None:
        """Wait for all answers under way; keep the first error."""
        self._settle_question()
        while self._fences:
            self._pass_fence()

    def _settle_question(self) -> None:
        if self._asked is None:
            return
        # The question stays open until it is answered: an interrupted wait must not lose the answer.
        pending, otherwise = self._asked
        answer = self._keep_error(pending)
        self._asked = None
        if answer is not None and not answer.reply.result:
            otherwise()

    def _keep_error(self, pending: Pending[Reply]) -> Answer[Reply] | None:
        try:
            return self.dispatcher.wait(pending)
        except RpcBackendError as error:
            self._error = self._error or error
            return None

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _count(self, nbytes: int) -> None:
        self._unfenced_nbytes += nbytes
        self._unfenced_commands += 1
        if self._unfenced_nbytes >= self._window_nbytes or self._unfenced_commands >= _FENCE_EVERY_COMMANDS:
            self._add_fence()
            while len(self._fences) > 1:
                self._pass_fence()

    def _pass_fence(self) -> None:
        self._keep_error(self._fences[0])
        self._fences.popleft()

    def _add_fence(self) -> None:
        self._unfenced_nbytes = self._unfenced_commands = 0
        self._fences.append(self.dispatcher.submit(SYNCHRONIZE, Empty(), stream=self.stream))
