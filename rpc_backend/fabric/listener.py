"""The worker's end of the fabric: one ROUTER, owned by one I/O thread.

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
from rpc_backend.fabric.outgoing import Outgoing, prepare
from rpc_backend.fabric.pairing import WATCH_MS, send_paired
from rpc_backend.fabric.payload_links import PayloadLinks
from rpc_backend.fabric.peers import Peer, PeerTable, Verdict
from rpc_backend.fabric.sockets import (
    bind,
    cut,
    has_message,
    inode_of,
    is_from_dealer,
    make_socket,
    receive,
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
_RETRY_FAST_MS, _RETRY_SLOW_MS, _FAST_RETRIES = 1, 10, 100

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
        self._inbox: deque[tuple[PeerId, Outgoing] | _CutRequest] = deque()
        self._table = PeerTable()
        self._payloads = payloads
        self._links = PayloadLinks(payloads, on_message, options)
        self._blocked: dict[PeerId, Peer] = {}
        self._cuts: list[tuple[float, Peer]] = []
        self._ending: dict[PeerId, Peer] = {}  # gone; what they sent before is still to be delivered
        self._n_retries = 0
        self._is_closed = False
        self._has_met_rude = False
        self._thread = IoThread(f"fabric {endpoints[0]}", self._run)
        self._thread.start(_START_TIMEOUT_S)

    @property
    def names(self) -> list[str]:
        return [str(endpoint) for endpoint in self.bound_endpoints]

    def send(self, peer: PeerId, frames: Sequence[Frame]) -> Ticket:
        outgoing = prepare(frames)
        self._put((peer, outgoing))
        return outgoing.ticket

    @property
    def carried(self) -> dict[str, Carried]:
        return {transport.name: transport.tally.snapshot() for transport in self._payloads}

    def accept_link(self, peer: PeerId, offers: Sequence[LinkOffer]) -> list[LinkOffer]:
        assert self._thread.is_current, "offers are taken up where messages are handled"
        return self._links.accept(self._table.peers.get(peer), offers)

    def close_peer(self, peer: PeerId, grace_s: float = 0.0) -> None:
        self._put(_CutRequest(peer, time.monotonic() + grace_s))

    def close(self, linger_s: float = 1.0) -> None:
        self._thread.stop(linger_s)

    def abort(self) -> None:
        self._thread.stop(0.0)

    def _put(self, item: tuple[PeerId, Outgoing] | _CutRequest) -> None:
        self._inbox.append(item)
        if self._is_closed:
            self._inbox.clear()  # nobody will: let go of the memory
        elif not self._thread.is_current:
            self._thread.waker.wake()

    # Everything below runs on the I/O thread.

    def _run(self, thread: IoThread) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        sock = make_socket(context, zmq.ROUTER, self._options)
        monitor = Monitor(context, sock)
        try:
            self.bound_endpoints = [bind(sock, endpoint, address) for endpoint, address in self._addresses]
            thread.opened()
            self._serve(thread, sock, monitor)
        finally:
            self._is_closed = True
            self._inbox.clear()
            self._forget_queues()
            self._links.close()
            monitor.close()
            sock.close(int(thread.linger_s * 1000))
            context.term()

    def _serve(self, thread: IoThread, sock: zmq.Socket[bytes], monitor: Monitor) -> None:
        poller = zmq.Poller()
        for source in (sock, monitor.socket, thread.waker.fileno()):
            poller.register(source, zmq.POLLIN)
        while True:
            self._links.register(poller)
            ready = dict(poller.poll(self._poll_timeout_ms(thread)))
            if thread.waker.fileno() in ready:
                thread.waker.clear()
            if sock in ready and thread.stop_deadline is None:
                self._receive(sock, monitor)
            if monitor.socket in ready:
                self._follow(monitor)
            if self._ending:
                self._bury(sock, monitor, is_stopping=thread.stop_deadline is not None)
            self._take_inbox(sock)
            self._retry_blocked(sock)
            self._advance_links(sock, ready)
            self._cut_due()
            if thread.stop_deadline is not None and (thread.linger_s <= 0 or self._has_sent_all()):
                return

    def _has_sent_all(self) -> bool:
        return not (self._inbox or self._blocked) and self._links.have_sent_all()

    def _poll_timeout_ms(self, thread: IoThread) -> int | None:
        waits: list[float] = [0.0] if self._links.have_more or self._ending else []
        if self._links.are_waiting:
            waits.append(WATCH_MS)
        if self._blocked:
            # POLLOUT of a ROUTER says that some peer can be written to, not which: ask again soon.
            waits.append(_RETRY_FAST_MS if self._n_retries < _FAST_RETRIES else _RETRY_SLOW_MS)
        if thread.stop_deadline is not None:
            waits.append(thread.linger_s * 1000)
        if self._cuts:
            waits.append(max(0.0, min(due for due, _ in self._cuts) - time.monotonic()) * 1000 + 1)
        return int(min(waits)) if waits else None

    def _receive(self, sock: zmq.Socket[bytes], monitor: Monitor, at_most: int = MESSAGES_PER_TURN) -> None:
        for _ in range(at_most):
            # One more frame than a message of ours has: the identity that a ROUTER puts in front.
            frames = receive(sock, self._options.max_frames + 1)
            if frames is None:
                return
            self._handle(frames, monitor)
            if not has_message(sock):
                return

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

    def _bury(self, sock: zmq.Socket[bytes], monitor: Monitor, *, is_stopping: bool) -> None:
        """Deliver what lost peers had sent before their connections ended, then report their loss.

        The socket gives peers their turns, and holds at most its queue of each.
        """
        ending = list(self._ending.values())
        if not is_stopping:
            n_peers = len(self._table.peers) + len(ending)
            self._receive(sock, monitor, (self._options.receive_queue_messages + MESSAGES_PER_TURN) * n_peers)
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
        self._blocked.pop(peer.identity, None)
        peer.queue.clear()
        self._links.drop(peer)
        try:
            self._on_peer_lost(peer.identity)
        except Exception:
            _log.exception("the loss of a peer could not be handled")

    def _take_inbox(self, sock: zmq.Socket[bytes]) -> None:
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, _CutRequest):
                self._close_at(item)
                continue
            identity, outgoing = item
            peer = self._table.peers.get(identity)
            if peer is not None:
                peer.put(outgoing)
                if identity not in self._blocked:
                    self._send_queued(sock, peer)

    def _retry_blocked(self, sock: zmq.Socket[bytes]) -> None:
        self._n_retries = self._n_retries + 1 if self._blocked else 0
        for peer in list(self._blocked.values()):
            self._send_queued(sock, peer)

    def _send_queued(self, sock: zmq.Socket[bytes], peer: Peer) -> None:
        """Send to one peer until its queue is empty or no more can be under way to it."""
        while peer.queue:
            if peer.pairing is not None and peer.pairing.is_sending:
                self._limit_queue(peer)  # `_advance_links` goes on
                break
            if peer.settle() >= self._options.max_in_flight_nbytes or not self._send_first(sock, peer):
                self._block(peer)
                return
        self._blocked.pop(peer.identity, None)

    def _send_first(self, sock: zmq.Socket[bytes], peer: Peer) -> bool:
        try:
            send_paired(peer.queue[0], peer.pairing, sock, peer.identity)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            peer.queue.clear()  # gone; the monitor reports the loss
            return True
        peer.taken()
        self._links.begun(peer)
        self._n_retries = 0
        return True

    def _block(self, peer: Peer) -> None:
        self._blocked[peer.identity] = peer
        self._limit_queue(peer)

    def _limit_queue(self, peer: Peer) -> None:
        if peer.queued_nbytes > self._options.max_queued_nbytes:
            _log.warning("closing a peer that does not read: %d bytes wait for it", peer.queued_nbytes)
            self._close_now(peer.identity)

    def _advance_links(self, sock: zmq.Socket[bytes], ready: Mapping[object, int]) -> None:
        """Move payloads beside the fabric, and send what waited for them."""
        for peer in self._links.due(ready):
            try:
                self._links.advance(peer)
            except Exception as error:
                _log.warning("closing a peer: %s", error, exc_info=not isinstance(error, ChannelError))
                self._close_now(peer.identity)
                continue
            self._send_queued(sock, peer)

    def _close_at(self, request: _CutRequest) -> None:
        peer = self._table.peers.get(request.identity)
        if peer is not None:
            peer.is_closing = True
            self._cuts.append((request.due, peer))

    def _cut_due(self) -> None:
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

    def _forget_queues(self) -> None:
        for peer in self._table.peers.values():
            peer.queue.clear()
        self._blocked.clear()
