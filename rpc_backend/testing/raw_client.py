"""A client of an inline worker that says what it is told to, one record at a time.

Belongs here: the double. Must not be here: what a worker should answer (tests), or what a real client does (`client`).
"""

from __future__ import annotations

from typing import Any

from rpc_backend.graph import build, element_type, encode_tensor, op_table_digest
from rpc_backend.protocol import MAJOR, MINOR, ClientConversation, Command, ErrorEvent, Frame, NoticeEvent, ReplyEvent
from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.testing.inline_worker import InlineWorker

F32 = element_type("F32")


class RawClient:
    """`events` are all answers and notices that came, `lost` why the connection ended."""

    def __init__(self, worker: InlineWorker, *, greet: bool = True, minor: int = MINOR) -> None:
        """Connect, and with `greet` say HELLO as a client of protocol minor `minor`."""
        self.conversation = ClientConversation()
        self.events: list[ReplyEvent | ErrorEvent | NoticeEvent] = []
        self.lost: list[Exception] = []
        self.channel = worker.network.connect(on_message=self._take, on_lost=self.lost.append)
        if greet:
            self.hello = self.ask(c.HELLO, hello(minor=minor))
            self.conversation.agree(minor)

    def say(self, command: Command[Any, Any], body: Any, *, stream: int = 0, payload: Frame | None = None) -> int:
        """Send a request and return its sequence number."""
        sequence, frames = self.conversation.request(command, body, stream=stream, payload=payload)
        self.channel.send(frames)
        return sequence

    def answer(
        self, command: Command[Any, Any], body: Any, *, stream: int = 0, payload: Frame | None = None
    ) -> ReplyEvent | ErrorEvent:
        """Send a request and return the one answer that came."""
        n_before = len(self.answers())
        self.say(command, body, stream=stream, payload=payload)
        assert len(self.answers()) == n_before + 1, f"{command.name} was not answered once"
        return self.answers()[-1]

    def ask(self, command: Command[Any, Any], body: Any, *, stream: int = 0, payload: Frame | None = None) -> Any:
        """Send a request and return the record of its reply, or raise the error that came instead."""
        return reply_of(self.answer(command, body, stream=stream, payload=payload)).body

    def answers(self) -> list[ReplyEvent | ErrorEvent]:
        """Return the answers that came so far."""
        return [event for event in self.events if not isinstance(event, NoticeEvent)]

    def notices(self) -> list[NoticeEvent]:
        """Return the notices that came so far."""
        return [event for event in self.events if isinstance(event, NoticeEvent)]

    def alloc(self, nbytes: int, device: int = 0, usage: str = "any") -> int:
        """Allocate a buffer and return its handle."""
        return self.ask(c.ALLOC_BUFFER, r.AllocBuffer(device, nbytes, usage), stream=device).handle

    def read(self, handle: int, nbytes: int = 64, stream: int = 0, *, offset: int = 0) -> bytes:
        """Return bytes of a buffer."""
        request = r.TensorRange(leaf_record(handle, nbytes, offset), 0, nbytes)
        payload = reply_of(self.answer(c.GET_TENSOR, request, stream=stream)).payload
        assert payload is not None, "a read has a payload"
        return bytes(payload)

    def _take(self, frames: list[memoryview]) -> None:
        self.events.append(self.conversation.receive(frames))


def hello(major: int = MAJOR, minor: int = MINOR, digest: str | None = None) -> r.Hello:
    """Return the greeting of a client, with our own op table unless told otherwise."""
    return r.Hello(major, minor, op_table_digest() if digest is None else digest, "test", [], 1000)


def leaf_record(handle: int, nbytes: int = 64, offset: int = 0) -> r.Record:
    """Return the record of a row of F32 that lies in a buffer."""
    return encode_tensor(build.leaf(F32, [nbytes // 4]), {}, lambda _: (handle, offset), computed=False)


def reply_of(event: ReplyEvent | ErrorEvent | NoticeEvent) -> ReplyEvent:
    """Return a reply; raise the error that came instead."""
    if isinstance(event, ReplyEvent):
        return event
    raise event.error
