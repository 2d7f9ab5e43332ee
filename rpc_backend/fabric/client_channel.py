"""The client's end of the fabric: one DEALER, owned by one I/O thread.

Belongs here: connecting with a cause when it fails, the send queue, noticing the end. Must not be here: what messages
mean, name resolution.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

import zmq

from rpc_backend.errors import ConnectError, DeadlineError, EndpointError, RemoteProtocolError, WorkerLostError
from rpc_backend.fabric.io_thread import IoThread
from rpc_backend.fabric.monitor import Happened, Monitor
from rpc_backend.fabric.options import FabricOptions
from rpc_backend.fabric.outgoing import Outgoing, prepare
from rpc_backend.fabric.sockets import has_message, make_socket, receive, views
from rpc_backend.interfaces import Channel, OnLost, OnMessage, Ticket, Transport
from rpc_backend.protocol.endpoint import Endpoint
from rpc_backend.protocol.framing import Frame

MESSAGES_PER_TURN = 32
_START_MARGIN_S = 1.0


def connect(
    endpoint: Endpoint,
    transport: Transport,
    *,
    on_message: OnMessage,
    on_lost: OnLost,
    options: FabricOptions | None = None,
) -> ClientChannel:
    """Connect to a worker; returns when both sides have greeted each other as ZeroMQ sockets.

    Raises:
        ConnectError: nobody is there, or something that does not speak ZeroMQ; with the cause and the endpoint.
    """
    return ClientChannel(endpoint, transport, on_message, on_lost, options or FabricOptions())


class ClientChannel(Channel):
    """A `Channel` over ZeroMQ. Make it with `connect`."""

    def __init__(
        self, endpoint: Endpoint, transport: Transport, on_message: OnMessage, on_lost: OnLost, options: FabricOptions
    ) -> None:
        self.endpoint = endpoint
        self._transport = transport
        self._on_message = on_message
        self._on_lost = on_lost
        self._options = options
        self._queue: deque[Outgoing] = deque()
        self._queue_lock = threading.Lock()
        self._given_nbytes = 0  # counted under the lock
        self._taken_nbytes = 0  # counted by the I/O thread
        self._lost_because = ""
        self._thread = IoThread(f"fabric {endpoint}", self._run)
        self._start()

    @property
    def name(self) -> str:
        return str(self.endpoint)

    @property
    def is_open(self) -> bool:
        return not self._lost_because and self._thread.stop_deadline is None

    @property
    def queued_nbytes(self) -> int:
        return self._given_nbytes - self._taken_nbytes

    def send(self, frames: Sequence[Frame]) -> Ticket:
        outgoing = prepare(frames)
        with self._queue_lock:
            if not self.is_open:
                raise WorkerLostError(self._lost_because or f"the channel to {self.endpoint} is closed")
            self._queue.append(outgoing)
            self._given_nbytes += outgoing.nbytes
        if not self._thread.is_current:
            self._thread.waker.wake()
        return outgoing.ticket

    def close(self, linger_s: float = 1.0) -> None:
        self._thread.stop(linger_s)

    def abort(self) -> None:
        self._thread.stop(0.0)

    def _start(self) -> None:
        timeout_s = self._options.connect_timeout_ms / 1000
        try:
            self._thread.start(timeout_s + _START_MARGIN_S)
        except DeadlineError as error:
            raise ConnectError(f"cannot connect to {self.endpoint}: no answer within {timeout_s:g} s") from error

    def _run(self, thread: IoThread) -> None:
        """The body of the I/O thread; sockets live and die here."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        try:
            link = _open_link(context, self.endpoint, self._transport, self._options)
            try:
                thread.opened()
                lost = self._serve(thread, link)
            finally:
                with self._queue_lock:
                    self._lost_because = self._lost_because or f"the channel to {self.endpoint} is closed"
                    self._queue.clear()
                link.close(thread.linger_s)
        finally:
            context.term()
        if lost is not None and thread.stop_deadline is None:
            self._on_lost(lost)

    def _serve(self, thread: IoThread, link: _Link) -> Exception | None:
        """Move messages until asked to stop (None) or lost (the reason)."""
        poller = zmq.Poller()
        for source in (link.sock, link.monitor.socket, thread.waker.fileno()):
            poller.register(source, zmq.POLLIN)
        is_blocked = False
        while True:
            ready = dict(poller.poll(self._poll_timeout_ms(thread)))
            if thread.waker.fileno() in ready:
                thread.waker.clear()
            lost = self._receive(link) if link.sock in ready else None
            was_blocked, is_blocked = is_blocked, not self._send_queued(link.sock)
            if is_blocked != was_blocked:
                poller.modify(link.sock, zmq.POLLIN | zmq.POLLOUT if is_blocked else zmq.POLLIN)
            if link.monitor.socket in ready and any(e.happened is Happened.CLOSED for e in link.monitor.events()):
                lost = lost or self._receive_rest(link) or self._went_away()
            if lost is not None:
                with self._queue_lock:
                    self._lost_because = f"the channel to {self.endpoint} is lost: {lost}"
                return lost
            if thread.stop_deadline is not None and (not self._queue or thread.linger_s <= 0):
                return None

    def _poll_timeout_ms(self, thread: IoThread) -> int | None:
        return None if thread.stop_deadline is None else int(thread.linger_s * 1000)

    def _send_queued(self, sock: zmq.Socket[bytes]) -> bool:
        """Send until the queue is empty (True) or the socket takes no more."""
        while self._queue:
            outgoing = self._queue[0]
            try:
                outgoing.send(sock)
            except zmq.Again:
                return False
            self._queue.popleft()
            self._taken_nbytes += outgoing.nbytes
        return True

    def _receive(self, link: _Link, at_most: int = MESSAGES_PER_TURN) -> Exception | None:
        """Deliver messages that are there; return what the receiver raised."""
        for _ in range(at_most):
            frames = receive(link.sock, self._options.max_frames)
            if frames is None:
                return None
            if len(frames) > self._options.max_frames:
                return RemoteProtocolError(f"a message of over {self._options.max_frames} frames")
            try:
                self._on_message(views(frames))
            except Exception as error:
                return error
            if not has_message(link.sock):
                return None
        return None

    def _receive_rest(self, link: _Link) -> Exception | None:
        """Deliver what came before the connection ended; the socket holds no more than its queue."""
        return self._receive(link, self._options.receive_queue_messages + MESSAGES_PER_TURN)

    def _went_away(self) -> WorkerLostError:
        silence_s = self._options.heartbeat_timeout_ms / 1000
        return WorkerLostError(
            f"the connection to {self.endpoint} went away: the worker ended, cut it or was silent for {silence_s:g} s"
        )


class _Link:
    """A connected socket with its monitor."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, options: FabricOptions) -> None:
        self.sock = make_socket(context, zmq.DEALER, options)
        self.monitor = Monitor(context, self.sock)
        self._address = address

    def greet(self, timeout_s: float) -> str:
        """Connect and return "" when both sides have greeted, else why not."""
        try:
            self.sock.connect(self._address)
        except zmq.ZMQError as error:
            return f"{error.strerror} ({self._address})"
        deadline = time.monotonic() + timeout_s
        reached = False
        while (left_s := deadline - time.monotonic()) > 0:
            self.monitor.socket.poll(max(1, int(left_s * 1000)))
            for event in self.monitor.events():
                if event.happened is Happened.GREETED:
                    return ""
                if event.happened is Happened.CONNECT_FAILED:
                    return "nobody listens there (connection refused or host unreachable)"
                if event.happened in (Happened.GREETING_FAILED, Happened.CLOSED):
                    return "what listens there does not speak the language of a worker (ZeroMQ greeting failed)"
                reached = reached or event.happened is Happened.OPENED
        if reached:
            return f"something accepts connections there but did not greet as a worker within {timeout_s:g} s"
        return f"no answer within {timeout_s:g} s"

    def close(self, linger_s: float) -> None:
        self.monitor.close()
        self.sock.close(int(linger_s * 1000))


def _open_link(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint, transport: Transport, options: FabricOptions
) -> _Link:
    """Try each address of the endpoint in turn; they share the connect timeout."""
    addresses = list(transport.connect_addresses(endpoint))
    if not addresses:
        raise EndpointError(f"transport {transport.name!r} has no address for {endpoint}")
    deadline = time.monotonic() + options.connect_timeout_ms / 1000
    reasons: list[str] = []
    for index, address in enumerate(addresses):
        share_s = (deadline - time.monotonic()) / (len(addresses) - index)
        link = _Link(context, address, options)
        reason = link.greet(share_s)
        if not reason:
            return link
        link.close(0.0)
        reasons.append(reason)
    raise ConnectError(f"cannot connect to {endpoint}: {'; '.join(dict.fromkeys(reasons))}")
