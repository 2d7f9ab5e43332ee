"""Two ends of a connection as the transport suite uses them: no commands, only messages.

Belongs here: making them, their small greeting, waiting for what comes. Must not be here: the checks
(`transport_suite`), other processes (`transport_peer`).

A greeting stands for HELLO: it carries the offers of payload links, as HELLO does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from rpc_backend.fabric import FabricOptions, connect, listen, offer_records, read_offers
from rpc_backend.interfaces import Channel, Listener, PayloadTransport, PeerId, Ticket
from rpc_backend.protocol import Frame, parse_endpoint
from rpc_backend.protocol.codec import pack, unpack
from rpc_backend.registry import Registry, load_registry

WAIT_S = 60.0
MIB = 1 << 20
GREETING = b"greeting "
OPTIONS = FabricOptions(heartbeat_timeout_ms=10_000)

Handle = Callable[["Server", PeerId, list[memoryview]], None]


@dataclass(frozen=True, slots=True)
class Way:
    """A way for messages: where to listen, and the text that `--transport` would have."""

    name: str
    listen: str
    transport: str = "tcp"


class Waiting:
    """A list that other threads put into, and that can be waited for."""

    def __init__(self) -> None:
        self.items: list[object] = []
        self._changed = threading.Condition()

    def put(self, item: object) -> None:
        """Append something."""
        with self._changed:
            self.items.append(item)
            self._changed.notify_all()

    def wait(self, n: int = 1, timeout_s: float = WAIT_S) -> list[object]:
        """Return the items once there are `n`; fails after `timeout_s`."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.items) >= n, timeout_s)
            assert came, f"{len(self.items)} of {n} came within {timeout_s:g} s"
            return list(self.items)


def echo(server: Server, peer: PeerId, frames: list[memoryview]) -> None:
    """Send a message back."""
    server.listener.send(peer, frames)


class Server:
    """A listener; `handle` gets what clients send after their greeting. As a context manager it ends with the block."""

    def __init__(
        self, way: Way, handle: Handle = echo, payloads: Sequence[PayloadTransport] | None = None,
        options: FabricOptions = OPTIONS,
    ) -> None:  # fmt: skip
        registry = load_registry()
        self.payloads = registry.payload_transports(way.transport) if payloads is None else payloads
        self.handle = handle
        self.lost = Waiting()
        self._is_ready = threading.Event()
        self._listener: Listener | None = None
        self._listener = listen(
            [parse_endpoint(way.listen, listen=True)], registry.transport_for,
            on_message=self._take, on_peer_lost=self.lost.put, options=options, payloads=self.payloads,
        )  # fmt: skip
        self._is_ready.set()

    @property
    def listener(self) -> Listener:
        assert self._is_ready.wait(WAIT_S), "the listener is not ready"
        assert self._listener is not None, "it is ready"
        return self._listener

    @property
    def endpoint(self) -> str:
        return self.listener.names[0]

    def _take(self, peer: PeerId, frames: list[memoryview]) -> None:
        if bytes(frames[0][: len(GREETING)]) != GREETING:
            self.handle(self, peer, frames)
            return
        offers = read_offers(unpack(frames[0][len(GREETING) :]))
        answer = offer_records(self.listener.accept_link(peer, offers))
        self.listener.send(peer, [GREETING + pack(answer)])

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.listener.abort()


class Client:
    """A channel that has greeted; `came` are the messages, as bytes, `lost` is why it ended."""

    def __init__(
        self, endpoint: str, transport: str = "tcp", payloads: Sequence[PayloadTransport] | None = None,
        registry: Registry | None = None, options: FabricOptions = OPTIONS,
    ) -> None:  # fmt: skip
        registry = registry or load_registry()
        payloads = registry.payload_transports(transport) if payloads is None else payloads
        parsed = parse_endpoint(endpoint)
        self.came, self.lost, self._greetings = Waiting(), Waiting(), Waiting()
        self.on_message: Callable[[list[memoryview]], None] = lambda frames: self.came.put(list(map(bytes, frames)))
        self.channel: Channel = connect(
            parsed, registry.transport_for(parsed.scheme),
            on_message=self._take, on_lost=self.lost.put, options=options, payloads=payloads,
        )  # fmt: skip
        try:
            self.channel.send([GREETING + pack(offer_records(self.channel.offer_links()))])
            (answer,) = self._greetings.wait()
            assert isinstance(answer, bytes)
            self.channel.take_link(read_offers(unpack(memoryview(answer))))
        except BaseException:
            self.channel.abort()
            raise

    def send(self, *frames: Frame) -> Ticket:
        """Send a message."""
        return self.channel.send(frames)

    def ask(self, *frames: Frame) -> list[bytes]:
        """Send a message and return the next that comes."""
        n = len(self.came.items)
        self.send(*frames)
        answer = self.came.wait(n + 1)[n]
        assert isinstance(answer, list)
        return answer

    def _take(self, frames: list[memoryview]) -> None:
        if bytes(frames[0][: len(GREETING)]) == GREETING:
            self._greetings.put(bytes(frames[0][len(GREETING) :]))
        else:
            self.on_message(frames)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.abort()


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Return when a condition holds; fails after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.005)
