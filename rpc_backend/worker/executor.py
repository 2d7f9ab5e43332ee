"""Runs one command, and sees to it that failure is an answer.

Belongs here: the rules of errors and streams. Must not be here: single commands (`handlers`), threads
(`lanes`), or sockets (`links`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from rpc_backend.errors import RpcBackendError
from rpc_backend.protocol import BadRequestEvent, Lane, encode_error
from rpc_backend.protocol.commands import SUBMIT_ONWARD
from rpc_backend.protocol.records import Failure
from rpc_backend.worker.calls import Call, Handler, Outcome, Promise
from rpc_backend.worker.counters import UNKNOWN
from rpc_backend.worker.links import Link
from rpc_backend.worker.sessions import StreamState
from rpc_backend.worker.state import WorkerState

_LOG = logging.getLogger(__name__)


class Executor:
    """Runs commands against the state of a worker. No exception but an interrupt ever comes out."""

    def __init__(self, state: WorkerState, handlers: Mapping[int, Handler]) -> None:
        self._state = state
        self._handlers = handlers

    def run_control(self, call: Call) -> None:
        """Run a command that waits for no stream."""
        self._guard(call, lambda: self._run(call, None))

    def arrived(self, call: Call) -> Call:
        """Note that a command of a stream came, before it is queued. Raises what its handler's `arrive` raises."""
        arrive = self._handlers[call.command.code].arrive
        return call if arrive is None else replace(call, mark=arrive(self._state, call))

    def must_prepare(self, call: Call) -> bool:
        """Whether `prepare` has something to do for a command that came."""
        return call.mark != 0 and self._handlers[call.command.code].prepare is not None

    def prepare(self, call: Call) -> None:
        """Do what can be done for the next command of a stream before it must wait."""
        prepare = self._handlers[call.command.code].prepare
        session = call.session
        if prepare is None or session.closed or session.streams[call.stream].failure is not None:
            return
        try:
            prepare(self._state, call)
        except Exception as error:
            _LOG.debug("preparing %s failed, as it will when it runs: %s", call.command.name, error)

    def wait_s(self, call: Call) -> float:
        """Return how many seconds at most a stream must still be held before its next command can run."""
        wait_s = self._handlers[call.command.code].wait_s
        session = call.session
        if wait_s is None or session.closed or session.streams[call.stream].failure is not None:
            return 0.0
        return wait_s(self._state, call)

    def run_stream(self, call: Call) -> None:
        """Run the next command of a stream, in the thread of its device.

        While the stream waits to report an error, commands without reply are skipped; the next one with a
        reply reports it instead of running.
        """
        session = call.session
        session.unqueue(call.nbytes)
        if session.closed:
            self.abandon(call)
            return
        stream = session.streams[call.stream]
        failure, handler = stream.failure, self._handlers[call.command.code]
        if failure is None or handler.despite_error:
            watch = self._state.load_watch
            with nullcontext() if watch is None else watch.watching(call):
                self._guard(call, lambda: self._run(call, stream))
            return
        if handler.skipped is not None:
            handler.skipped(self._state, call, failure)
        if call.command.reply is not None:
            stream.failure = None
            self._guard(call, lambda: self._send_failure(call, failure))

    def abandon(self, call: Call) -> None:
        """Let go of what a command of a closed session holds."""
        skipped = self._handlers[call.command.code].skipped
        if skipped is not None:
            skipped(self._state, call, None)

    def fail(self, call: Call, error: BaseException) -> None:
        """Answer a command with an error, or push it where no answer is expected."""
        self._guard(call, lambda: self._send_failure(call, self._failure(call, error)))

    def refuse(self, link: Link, event: BadRequestEvent, stream: StreamState | None = None) -> None:
        """Answer a request that cannot be run, or push why where no answer is expected, and keep it for `stream`."""
        name = event.command.name if event.command else ""
        failure = encode_error(event.error, worker=self._state.name, command=name)
        if stream is not None and stream.failure is None:
            stream.failure = failure
        self._state.counters.count(name or UNKNOWN, nbytes_out=link.fail(event, failure))

    def _run(self, call: Call, stream: StreamState | None) -> None:
        outcome = self._attempt(call, stream)
        if outcome is None:
            return
        if isinstance(outcome, Promise):
            outcome.start(lambda reply: self._guard(call, lambda: self._reply(call, reply, None)))
            return
        if call.command.reply is not None:
            self._reply(call, outcome.reply, outcome.payload)
        if outcome.afterwards is not None:
            try:
                outcome.afterwards()
            except Exception as error:
                self._keep(call, stream, self._failure(call, error))

    def _reply(self, call: Call, reply: Any, payload: memoryview | None) -> None:
        nbytes = call.link.reply(call.event.sequence, reply, payload)
        self._state.counters.count(call.command.name, nbytes_out=nbytes)

    def _attempt(self, call: Call, stream: StreamState | None) -> Outcome | Promise | None:
        try:
            result = self._handlers[call.command.code].function(self._state, call)
        except Exception as error:
            failure = self._failure(call, error)
            if call.command.reply is not None:
                self._send_failure(call, failure)
            else:
                self._keep(call, stream, failure)
            return None
        return result if isinstance(result, Outcome | Promise) else Outcome(result)

    def _keep(self, call: Call, stream: StreamState | None, failure: Failure) -> None:
        """Keep the error of a command that has no answer (any more), and push it.

        That of a task is only pushed: the client sends it again if it was not known, and otherwise the task fails
        alone, and whoever waits for its results is told.
        """
        if stream is not None and stream.failure is None and call.command is not SUBMIT_ONWARD:
            stream.failure = failure
        nbytes = call.link.notify(call.stream, failure, call.command.code, call.event.sequence)
        self._state.counters.count(call.command.name, nbytes_out=nbytes)

    def _send_failure(self, call: Call, failure: Failure) -> None:
        nbytes = call.link.fail(call.event, failure)
        self._state.counters.count(call.command.name, nbytes_out=nbytes)

    def _failure(self, call: Call, error: BaseException) -> Failure:
        on_device = call.command.lane is Lane.STREAM and 0 <= call.stream < len(self._state.seats)
        device = self._state.seats[call.stream].device.info.name if on_device else ""
        return encode_error(error, worker=self._state.name, device=device, command=call.command.name)

    def _guard(self, call: Call, action: Callable[[], None]) -> None:
        """Run `action`; what it raises is a failure to answer, and is tried as an answer once."""
        try:
            action()
        except Exception as error:
            _LOG.exception("answering %s failed", call.command.name)
            try:
                call.link.fail(call.event, self._failure(call, error))
            except RpcBackendError:
                _LOG.exception("the failure to answer %s could not be reported", call.command.name)
