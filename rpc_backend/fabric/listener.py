"""The worker's end of the fabric: one ROUTER, served by one I/O thread.

Belongs here: binding, receiving from and sending to many peers, cutting a peer off. Must not be here: what messages
mean, sessions, who may bind where.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import zmq

from rpc_backend.errors import ChannelError, EndpointError
from rpc_backend.fabric.io_thread import IoThread
from rpc_backend.fabric.monitor import Happened, Monitor
from rpc_backend.fabric.options import FabricOptions
from rpc_backend.fabric.outbox import Outbox
from rpc_backend.fabric.outgoing import prepare
from rpc_backend.fabric.pairing import WATCH_MS
from rpc_backend.fabric.payload_links import PayloadLinks
from rpc_backend.fabric.peers import Peer, PeerTable, Verdict
from rpc_backend.fabric.shared_socket import SharedSocket
from rpc_backend.fabric.sockets import (
    bind,
    cut,
    has_message,
    inode_of,
    is_from_dealer,
    make_socket,
    source_fd,
    views,
)
from rpc_backend.interfaces import (
    Carried,
    LinkOffer,
    Listener,
    OnPeerLost,
    OnPeerMessage,
    PayloadTransport,
    PeerId,
    Ticket,
    Transport,
)
from rpc_backend.protocol.endpoint import Endpoint
from rpc_backend.protocol.framing import Frame

MESSAGES_PER_TURN = 32
_START_TIMEOUT_S = 30.0

_log = logging.getLogger(__name__)

TransportFor = Callable[[str], Transport]


def listen(
    endpoints: Sequence[Endpoint],
    transport_for: TransportFor,
    *,
    on_message: OnPeerMessage,
    on_peer_lost: OnPeerLost,
    options: FabricOptions | None = None,
    payloads: Sequence[PayloadTransport] = (),
) -> WorkerListener:
    """Bind all endpoints; serves from the return on. `transport_for` gives the transport of a scheme.

    `payloads` are the transports that may carry payloads beside the fabric, for clients that have one of them too.

    Raises:
        ConfigError: an endpoint is in use or not permitted; with the remedy.
        EndpointError: an endpoint is no place on this machine, or none is given.
    """
    return WorkerListener(endpoints, transport_for, on_message, on_peer_lost, options or FabricOptions(), payloads)


@dataclass(slots=True)
class _CutRequest:
    """A peer to be cut off, not before `due`."""

    identity: PeerId
    due: float


class WorkerListener(Listener):
    """A `Listener` over ZeroMQ. Make it with `listen`.

    After `close` or `abort` no callback runs; whoever closes it forgets the peers.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        transport_for: TransportFor,
        on_message: OnPeerMessage,
        on_peer_lost: OnPeerLost,
        options: FabricOptions,
        payloads: Sequence[PayloadTransport],
    ) -> None:
        if not endpoints:
            raise EndpointError("no endpoint to listen on; write for example tcp://127.0.0.1:5555")
        self.bound_endpoints: list[Endpoint] = []
        self._addresses = [(e, transport_for(e.scheme).listen_address(e)) for e in dict.fromkeys(endpoints)]
        self._on_message = on_message
        self._on_peer_lost = on_peer_lost
        self._options = options
        self._cut_requests: deque[_CutRequest] = deque()
        self._table = PeerTable()
        self._payloads = payloads
        self._links = PayloadLinks(payloads, on_message, options)
        self._outbox = Outbox(options, begun=self._links.begun, close_now=self._close_now)
        self._cuts: list[tuple[float, Peer]] = []
        self._ending: dict[PeerId, Peer] = {}  # gone; what they sent before is still to be delivered
        self._is_closed = False
        self._shared: SharedSocket | None = None
        self._has_met_rude = False
        self._thread = IoThread(f"fabric {endpoints[0]}", self._run)
        self._thread.start(_START_TIMEOUT_S)

    @property
    def names(self) -> list[str]:
        return [str(endpoint) for endpoint in self.bound_endpoints]

    def send(self, peer: PeerId, frames: Sequence[Frame]) -> Ticket:
        outgoing = prepare(frames)
        shared = self._shared
        if shared is None or not self._outbox.send_now(shared, self._table.peers, peer, outgoing):
            self._outbox.put(peer, outgoing)
            self._look()
        return outgoing.ticket

    @property
    def carried(self) -> dict[str, Carried]:
        return {transport.name: transport.tally.snapshot() for transport in self._payloads}

    def accept_link(self, peer: PeerId, offers: Sequence[LinkOffer]) -> list[LinkOffer]:
        assert self._thread.is_current, "offers are taken up where messages are handled"
        return self._links.accept(self._table.peers.get(peer), offers)

    def close_peer(self, peer: PeerId, grace_s: float = 0.0) -> None:
        self._cut_requests.append(_CutRequest(peer, time.monotonic() + grace_s))
        self._look()

    def close(self, linger_s: float = 1.0) -> None:
        self._thread.stop(linger_s)

    def abort(self) -> None:
        self._thread.stop(0.0)

    def _look(self) -> None:
        """Have the I/O thread look at what was left for it."""
        if self._is_closed:
            self._outbox.close(())  # nobody will: let go of the memory
        elif not self._thread.is_current:
            self._thread.waker.wake()

    # Everything below runs on the I/O thread.

    def _run(self, thread: IoThread) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        sock = make_socket(context, zmq.ROUTER, self._options)
        monitor = Monitor(context, sock)
        try:
            self.bound_endpoints = [bind(sock, endpoint, address) for endpoint, address in self._addresses]
            shared = SharedSocket(sock, thread.waker.wake)
            self._shared = shared
            thread.opened()
            self._serve(thread, shared, monitor)
        finally:
            self._is_closed = True
            if self._shared is not None:
                self._shared.close()
            self._outbox.close(self._table.peers.values())
            self._links.close()
            monitor.close()
            sock.close(int(thread.linger_s * 1000))
            context.term()

    def _serve(self, thread: IoThread, shared: SharedSocket, monitor: Monitor) -> None:
        poller = zmq.Poller()
        for descriptor in (shared.fileno(), int(monitor.socket.fd), thread.waker.fileno()):
            poller.register(descriptor, zmq.POLLIN)
        while True:
            self._links.register(poller)
            ready = dict(poller.poll(0 if self._is_due(thread, shared, monitor) else self._poll_timeout_ms(thread)))
            if thread.waker.fileno() in ready:
                thread.waker.clear()
            if thread.stop_deadline is None:
                self._receive(shared, monitor)
            self._follow(monitor)
            if self._ending:
                self._bury(shared, monitor, is_stopping=thread.stop_deadline is not None)
            with shared.held() as sock:
                self._outbox.send_all(sock, self._table.peers)
                self._advance_links(sock, ready)
            self._cut_due()
            if thread.stop_deadline is not None and (thread.linger_s <= 0 or self._has_sent_all()):
                return

    def _is_due(self, thread: IoThread, shared: SharedSocket, monitor: Monitor) -> bool:
        """Whether there is something to do that no descriptor may tell of any more."""
        is_receiving = thread.stop_deadline is None
        return self._outbox.has_new or (is_receiving and shared.is_due()) or has_message(monitor.socket)

    def _has_sent_all(self) -> bool:
        return self._outbox.is_empty and self._links.have_sent_all()

    def _poll_timeout_ms(self, thread: IoThread) -> int | None:
        waits: list[float] = [0.0] if self._links.have_more or self._ending else []
        if self._links.are_waiting:
            waits.append(WATCH_MS)
        if self._outbox.retry_ms is not None:
            waits.append(self._outbox.retry_ms)
        if thread.stop_deadline is not None:
            waits.append(thread.linger_s * 1000)
        if self._cuts:
            waits.append(max(0.0, min(due for due, _ in self._cuts) - time.monotonic()) * 1000 + 1)
        return int(min(waits)) if waits else None

    def _receive(self, shared: SharedSocket, monitor: Monitor, at_most: int = MESSAGES_PER_TURN) -> None:
        for _ in range(at_most):
            # One more frame than a message of ours has: the identity that a ROUTER puts in front.
            frames = shared.receive(self._options.max_frames + 1)
            if frames is None:
                return
            self._handle(frames, monitor)

    def _handle(self, frames: list[zmq.Frame], monitor: Monitor) -> None:
        peer = self._sender(frames, monitor)
        if peer is None:
            return
        if len(frames) > self._options.max_frames + 1:
            _log.warning("closing a peer: it sent a message of over %d frames", self._options.max_frames)
            self._close_now(peer.identity)
        else:
            self._deliver(peer, views(frames[1:]))

    def _sender(self, frames: list[zmq.Frame], monitor: Monitor) -> Peer | None:
        """Return the peer that a message is from, None if it must be dropped."""
        identity = frames[0].bytes
        known = self._table.peers.get(identity) or self._ending.get(identity)
        if known is not None:
            return None if known.is_closing else known
        if not is_from_dealer(frames):
            self._drop_rude()
            return None
        fd = source_fd(frames)
        self._follow(monitor)  # what happened to the descriptor before this message is known then
        verdict, lost = self._table.arrived(identity, fd)
        self._lose(lost)
        if verdict is Verdict.LATE:
            return None
        peer = self._table.peers[identity]
        peer.inode = inode_of(fd)
        return peer

    def _drop_rude(self) -> None:
        # libzmq does not tell the connection of such a message, so it cannot be cut.
        if not self._has_met_rude:
            self._has_met_rude = True
            _log.warning("dropping messages that came without the greeting of a client; told once")

    def _deliver(self, peer: Peer, frames: list[memoryview]) -> None:
        try:
            if peer.pairing is None:
                self._on_message(peer.identity, frames)
            else:
                self._links.arrived(peer, frames)
        except Exception:
            _log.exception("closing a peer: its message could not be handled")
            self._close_now(peer.identity)

    def _follow(self, monitor: Monitor) -> None:
        """Bring the books up to date with what happened to connections."""
        for event in monitor.events():
            if event.happened is Happened.OPENED:
                self._lose(self._table.opened(event.fd))
            elif event.happened is Happened.CLOSED:
                self._lose(self._table.closed(event.fd))

    def _lose(self, peer: Peer | None) -> None:
        if peer is not None:
            self._ending[peer.identity] = peer

    def _bury(self, shared: SharedSocket, monitor: Monitor, *, is_stopping: bool) -> None:
        """Deliver what lost peers had sent before their connections ended, then report their loss.

        The socket gives peers their turns, and holds at most its queue of each.
        """
        ending = list(self._ending.values())
        if not is_stopping:
            n_peers = len(self._table.peers) + len(ending)
            self._receive(shared, monitor, (self._options.receive_queue_messages + MESSAGES_PER_TURN) * n_peers)
        for peer in ending:
            if self._ending.get(peer.identity) is peer:
                self._finish_link(peer)
                self._ending.pop(peer.identity, None)
                self._report_lost(peer)

    def _finish_link(self, peer: Peer) -> None:
        try:
            self._links.finish(peer)
        except Exception as error:
            _log.warning("dropping the rest of a lost peer: %s", error, exc_info=not isinstance(error, ChannelError))

    def _report_lost(self, peer: Peer) -> None:
        self._outbox.forget(peer)
        self._links.drop(peer)
        try:
            self._on_peer_lost(peer.identity)
        except Exception:
            _log.exception("the loss of a peer could not be handled")

    def _advance_links(self, sock: zmq.Socket[bytes], ready: Mapping[object, int]) -> None:
        """Move payloads beside the fabric, and send what waited for them."""
        for peer in self._links.due(ready):
            try:
                self._links.advance(peer)
            except Exception as error:
                _log.warning("closing a peer: %s", error, exc_info=not isinstance(error, ChannelError))
                self._close_now(peer.identity)
                continue
            self._outbox.send_queued(sock, peer)

    def _cut_due(self) -> None:
        while self._cut_requests:
            request = self._cut_requests.popleft()
            peer = self._table.peers.get(request.identity)
            if peer is not None:
                peer.is_closing = True
                self._cuts.append((request.due, peer))
        if not self._cuts:
            return
        now = time.monotonic()
        due = [peer for at, peer in self._cuts if at <= now]
        self._cuts = [(at, peer) for at, peer in self._cuts if at > now]
        for peer in due:
            self._close_now(peer.identity)

    def _close_now(self, identity: PeerId) -> None:
        peer = self._table.removed(identity) or self._ending.pop(identity, None)
        if peer is not None:
            cut(peer.fd, peer.inode)
            self._report_lost(peer)
