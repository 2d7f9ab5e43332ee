"""Connecting to a worker.

Belongs here: opening with HELLO, what the worker said of itself, closing. Must not be here: traffic
(`dispatcher`), devices (`device`).
"""

from __future__ import annotations

import threading
from importlib.metadata import version
from types import TracebackType
from typing import TypeVar

from rpc_backend import fabric
from rpc_backend import settings as switches
from rpc_backend.client.counters import Counters
from rpc_backend.client.device import RemoteDevice, open_devices
from rpc_backend.client.dispatcher import Dispatcher
from rpc_backend.client.watch import Watch
from rpc_backend.errors import (
    ChannelError,
    ConnectError,
    DeadlineError,
    ErrorContext,
    NegotiationError,
    RemoteProtocolError,
)
from rpc_backend.graph import op_table_digest
from rpc_backend.interfaces import Carrier
from rpc_backend.protocol import Agreement, Command, Endpoint, Greeting, Limits, negotiate, own_greeting, parse_endpoint
from rpc_backend.protocol.commands import GOODBYE, HELLO
from rpc_backend.protocol.negotiation import LINKS_SINCE
from rpc_backend.protocol.records import Empty, Hello, HelloReply
from rpc_backend.registry import Registry, load_registry
from rpc_backend.settings import Settings

Request = TypeVar("Request")
Reply = TypeVar("Reply")

_BUILD = version("zmq-rpc-backend")


class Connection:
    """An open session with one worker. Any thread may call it; as a context manager it closes itself."""

    def __init__(self, dispatcher: Dispatcher, hello: HelloReply, agreement: Agreement) -> None:
        """Take over a dispatcher whose HELLO was answered; `connect` makes one."""
        self.dispatcher = dispatcher
        self.hello = hello
        self.agreement = agreement
        self._devices: list[RemoteDevice] | None = None
        self._watch = Watch(dispatcher)
        self._lock = threading.Lock()
        self._closed = False

    @property
    def endpoint(self) -> str:
        """The worker's endpoint."""
        return self.dispatcher.name

    @property
    def carrier(self) -> Carrier:
        """How large payloads travel to and from this worker."""
        return self.dispatcher.carrier

    @property
    def counters(self) -> Counters:
        """Counts of what was sent and received so far."""
        return self.dispatcher.counters

    def watch(self) -> None:
        """Begin to look after deadlines and a silent worker also when no thread waits for an answer."""
        self._watch.start()

    def call(self, command: Command[Request, Reply], request: Request, *, stream: int = 0) -> Reply:
        """Send any command without payload and return its reply. Raises as `Dispatcher.call`."""
        return self.dispatcher.call(command, request, stream=stream)

    def devices(self) -> list[RemoteDevice]:
        """Return the worker's devices, always the same objects.

        Raises:
            WorkerLostError: the worker is gone.
        """
        with self._lock:
            if self._devices is None:
                self._devices = open_devices(self.dispatcher, self.hello)
            return list(self._devices)

    def close(self) -> None:
        """Say GOODBYE, so that the worker frees all of this session, and close. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._watch.stop()
        try:
            self.dispatcher.post(GOODBYE, Empty())
        except ChannelError:
            # The worker is gone, and with it the session.
            self.dispatcher.abort()
        else:
            self.dispatcher.close(linger_s=1.0)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    endpoint: str | Endpoint, settings: Settings | None = None, *, registry: Registry | None = None
) -> Connection:
    """Open a session with the worker at an endpoint.

    Without `settings` the environment is read; without `registry` the installed plugins are loaded.

    Raises:
        EndpointError: the endpoint cannot be parsed.
        ConnectError: nobody there, or no answer to HELLO within the connect timeout.
        NegotiationError: no common ground; the message has both versions.
    """
    settings = switches.from_environment() if settings is None else settings
    registry = load_registry() if registry is None else registry
    endpoint = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
    greeting = own_greeting(op_table_digest(), _BUILD, proto_minor=settings.proto_minor)
    limits = Limits()
    dispatcher = Dispatcher(str(endpoint), settings, limits)
    dispatcher.attach(
        fabric.connect(
            endpoint,
            registry.transport_for(endpoint.scheme),
            on_message=dispatcher.on_message,
            on_lost=dispatcher.on_lost,
            options=fabric.FabricOptions.of(settings, limits),
            payloads=registry.payload_transports(settings.transport),
        )
    )
    try:
        connection = greet(dispatcher, greeting, settings)
        connection.watch()
    except BaseException:
        dispatcher.abort()
        raise
    return connection


def greet(dispatcher: Dispatcher, greeting: Greeting, settings: Settings) -> Connection:
    """Say HELLO on a fresh connection. Raises as `connect`."""
    hello = Hello(
        greeting.major,
        greeting.minor,
        greeting.op_digest,
        greeting.build,
        list(greeting.abilities),
        settings.heartbeat_timeout_ms,
        fabric.offer_records(dispatcher.offer_links()) if greeting.minor >= LINKS_SINCE else [],
    )
    context = ErrorContext(worker=dispatcher.name)
    try:
        reply = dispatcher.call(HELLO, hello, timeout_s=settings.connect_timeout_ms / 1000)
    except DeadlineError as error:
        text = "something accepts connections there, but it does not answer HELLO; is it a worker of this project?"
        raise ConnectError(text, context=context) from error
    except ChannelError as error:
        raise ConnectError(
            f"the connection ended before HELLO was answered: {error.message}", context=context
        ) from error
    try:
        agreement = negotiate(greeting, Greeting.of(reply))
    except NegotiationError as error:
        raise error.located(worker=dispatcher.name) from None
    _check_reply(reply, dispatcher.name)
    dispatcher.agree(agreement.minor)
    if agreement.has_links:
        dispatcher.take_link(fabric.read_offers(reply.links))
    return Connection(dispatcher, reply, agreement)


def _check_reply(reply: HelloReply, name: str) -> None:
    if not reply.devices or reply.max_payload_nbytes < 1 or reply.max_queued_nbytes < 1:
        raise RemoteProtocolError(
            f"HELLO was answered with {len(reply.devices)} devices and limits of {reply.max_payload_nbytes} and "
            f"{reply.max_queued_nbytes} bytes",
            context=ErrorContext(worker=name),
        )
