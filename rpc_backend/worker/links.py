"""One connected peer: what it may say next, and the way back to it.

Belongs here: the lock that keeps messages in the order of their numbers. Must not be here: sessions, or what
is answered.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from rpc_backend.interfaces import LinkOffer, Listener
from rpc_backend.protocol import BadRequestEvent, Frames, Limits, RequestEvent, WorkerConversation
from rpc_backend.protocol.records import Failure


class Link:
    """The conversation with one peer. Any thread may answer; messages to a peer that is gone are dropped.

    `closed_because` says why it has no session any more.
    """

    def __init__(self, peer: bytes, listener: Listener, limits: Limits) -> None:
        self.peer = peer
        self.closed_because = ""
        self._listener = listener
        self._conversation = WorkerConversation(limits)
        self._lock = threading.Lock()

    def receive(self, frames: Frames) -> RequestEvent | BadRequestEvent:
        """Take one message. Raises as `WorkerConversation.receive`: the peer must then be closed."""
        with self._lock:
            return self._conversation.receive(frames)

    def take_up(self, offers: Sequence[LinkOffer]) -> list[LinkOffer]:
        """Take up a payload link that the peer offers; return the answer. Within `Listener`'s `on_message` only."""
        return self._listener.accept_link(self.peer, offers)

    def agree(self, minor: int) -> None:
        """HELLO went well: allow every command of this minor version."""
        with self._lock:
            self._conversation.agree(minor)

    def reply(self, sequence: int, body: Any, payload: memoryview | None = None) -> int:
        """Answer a request; return the bytes sent. The payload must not change any more."""
        with self._lock:
            return self._send(self._conversation.reply(sequence, body, payload))

    def fail(self, event: RequestEvent | BadRequestEvent, failure: Failure) -> int:
        """Answer a request with an error, or push it where no answer is expected; return the bytes sent."""
        with self._lock:
            return self._send(self._conversation.fail(event, failure))

    def notify(self, stream: int, failure: Failure, code: int, request: int = 0) -> int:
        """Push an error of a stream; return the bytes sent. Arguments as `WorkerConversation.notify`."""
        with self._lock:
            return self._send(self._conversation.notify(stream, failure, code, request))

    def _send(self, frames: Frames) -> int:
        self._listener.send(self.peer, frames)
        return sum(memoryview(frame).nbytes for frame in frames)
