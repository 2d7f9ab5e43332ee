"""The client's end of the fabric: one DEALER, served by one I/O thread.

Belongs here: connecting with a cause when it fails, the send queue, noticing the end. Must not be here: what messages
mean, name resolution.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Sequence

import zmq

from rpc_backend.errors import (
    ChannelError,
    ConnectError,
    DeadlineError,
    RemoteProtocolError,
    WorkerLostError,
)
from rpc_backend.fabric.dealer import Dealer, open_dealer
from rpc_backend.fabric.envelope import Envelope, Say
from rpc_backend.fabric.io_thread import IoThread
from rpc_backend.fabric.monitor import Happened
from rpc_backend.fabric.offers import Chosen, OwnOffers
from rpc_backend.fabric.options import FabricOptions
from rpc_backend.fabric.outgoing import Outgoing, prepare
from rpc_backend.fabric.pairing import WATCH_MS, Pairing, send_paired
from rpc_backend.fabric.payload_memory import PayloadMemory
from rpc_backend.fabric.shared_socket import SharedSocket
from rpc_backend.fabric.sockets import has_message, views
from rpc_backend.interfaces import (
    Carrier,
    Channel,
    LinkOffer,
    OnLost,
    OnMessage,
    PayloadTransport,
    Tally,
    Ticket,
    Transport,
)
from rpc_backend.protocol.endpoint import Endpoint
from rpc_backend.protocol.framing import Frame

MESSAGES_PER_TURN = 32
LINK_TIMEOUT_S = 10.0
_START_MARGIN_S = 1.0

_log = logging.getLogger(__name__)


def connect(
    endpoint: Endpoint,
    transport: Transport,
    *,
    on_message: OnMessage,
    on_lost: OnLost,
    options: FabricOptions | None = None,
    payloads: Sequence[PayloadTransport] = (),
) -> ClientChannel:
    """Connect to a worker; returns when both sides have greeted each other as ZeroMQ sockets.

    `payloads` are the transports that may carry payloads beside the fabric, once HELLO found one in common.

    Raises:
        ConnectError: nobody is there, or something that does not speak ZeroMQ; with the cause and the endpoint.
    """
    return ClientChannel(endpoint, transport, on_message, on_lost, options or FabricOptions(), payloads)


class ClientChannel(Channel):
    """A `Channel` over ZeroMQ. Make it with `connect`."""

    def __init__(
        self,
        endpoint: Endpoint,
        transport: Transport,
        on_message: OnMessage,
        on_lost: OnLost,
        options: FabricOptions,
        payloads: Sequence[PayloadTransport],
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
        self._payloads = payloads
        self._offers: OwnOffers | None = None
        self._chosen: Chosen | None = None  # for the I/O thread to take over
        self._carrier_name = ""
        self._link_settled = threading.Event()
        self._tally = Tally()
        self._pairing: Pairing | None = None  # the I/O thread's
        self._shared: SharedSocket | None = None
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

    @property
    def carrier(self) -> Carrier:
        return Carrier(self._carrier_name, self._tally.snapshot())

    def offer_links(self) -> list[LinkOffer]:
        self._offers = OwnOffers(self._payloads, self.name)
        return self._offers.records()

    def take_link(self, answers: Sequence[LinkOffer]) -> None:
        if self._offers is None:
            return  # none was offered
        chosen, must_decline = self._offers.choose(answers)
        if chosen is None:
            if must_decline:
                self.send([Envelope(Say.DECLINED).encode()])
            return
        with self._queue_lock:
            self._chosen = chosen
            is_gone = not self.is_open
        if is_gone:
            chosen.link.close()
            return
        self._thread.waker.wake()
        self._link_settled.wait(LINK_TIMEOUT_S)

    def send(self, frames: Sequence[Frame]) -> Ticket:
        outgoing = prepare(frames)
        with self._queue_lock:
            if not self.is_open:
                raise WorkerLostError(self._lost_because or f"the channel to {self.endpoint} is closed")
            if self._send_now(outgoing):
                return outgoing.ticket
            self._queue.append(outgoing)
            self._given_nbytes += outgoing.nbytes
        if not self._thread.is_current:
            self._thread.waker.wake()
        return outgoing.ticket

    def _send_now(self, outgoing: Outgoing) -> bool:
        """Send a message on the caller's thread, if nothing is before it and all of it travels inside."""
        if self._queue or self._chosen is not None or self._shared is None:
            return False
        with self._shared.borrowed() as sock:
            if sock is None or self._pairing is not None:
                return False
            try:
                outgoing.send(sock)
            except zmq.Again:
                return False
            return True

    def close(self, linger_s: float = 1.0) -> None:
        self._thread.stop(linger_s)
        if self._offers is not None:
            self._offers.close()

    def abort(self) -> None:
        self.close(0.0)

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
            link = open_dealer(context, self.endpoint, self._transport, self._options)
            try:
                shared = SharedSocket(link.sock, thread.waker.wake)
                self._shared = shared
                thread.opened()
                lost = self._serve(thread, link, shared)
            finally:
                self._link_settled.set()
                with self._queue_lock:
                    self._lost_because = self._lost_because or f"the channel to {self.endpoint} is closed"
                    self._queue.clear()
                if self._shared is not None:
                    self._shared.close()
                self._close_payload_link()
                link.close(thread.linger_s)
        finally:
            context.term()
        if lost is not None and thread.stop_deadline is None:
            self._on_lost(lost)

    def _serve(self, thread: IoThread, link: Dealer, shared: SharedSocket) -> Exception | None:
        """Move messages until asked to stop (None) or lost (the reason)."""
        poller = zmq.Poller()
        for descriptor in (shared.fileno(), int(link.monitor.socket.fd), thread.waker.fileno()):
            poller.register(descriptor, zmq.POLLIN)
        is_blocked = has_more = False
        while True:
            is_due = has_more or shared.is_due(is_blocked=is_blocked) or has_message(link.monitor.socket)
            ready = dict(poller.poll(0 if is_due else self._poll_timeout_ms(thread)))
            if thread.waker.fileno() in ready:
                thread.waker.clear()
            self._take_over(poller)
            lost = self._receive(shared)
            is_blocked = not self._send_queued(shared)
            has_more, broken = self._advance(shared, poller)
            lost = lost or broken
            if any(event.happened is Happened.CLOSED for event in link.monitor.events()):
                lost = lost or self._receive_rest(shared) or self._went_away()
            if lost is not None:
                with self._queue_lock:
                    self._lost_because = f"the channel to {self.endpoint} is lost: {lost}"
                return lost
            if thread.stop_deadline is not None and (self._has_sent_all() or thread.linger_s <= 0):
                return None

    def _poll_timeout_ms(self, thread: IoThread) -> int | None:
        watch_ms = WATCH_MS if self._pairing is not None and self._pairing.is_waiting else None
        if thread.stop_deadline is None:
            return watch_ms
        return int(min(thread.linger_s * 1000, watch_ms or math.inf))

    def _send_queued(self, shared: SharedSocket) -> bool:
        """Send until the queue is empty, a payload is under way beside the fabric, or the socket is full: False."""
        if not self._queue:
            return True
        with shared.held() as sock:
            while self._queue and not (self._pairing is not None and self._pairing.is_sending):
                outgoing = self._queue[0]
                try:
                    send_paired(outgoing, self._pairing, sock)
                except zmq.Again:
                    return False
                self._queue.popleft()
                self._taken_nbytes += outgoing.nbytes
        return True

    def _has_sent_all(self) -> bool:
        return not self._queue and (self._pairing is None or self._pairing.is_idle)

    def _take_over(self, poller: zmq.Poller) -> None:
        """Take over the payload link that was chosen; it is used once it has reached the worker."""
        chosen = self._chosen
        if chosen is None or self._pairing is not None or self._link_settled.is_set():
            return
        tallies = (self._tally, chosen.transport.tally)
        self._pairing = Pairing(chosen.link, self._on_message, self._options, PayloadMemory(), tallies)
        poller.register(self._pairing.fileno(), zmq.POLLIN)
        try:
            self._pairing.probe()
        except ChannelError as error:
            self._give_up_link(poller, error)

    def _settle_link(self, say: Say) -> None:
        """Tell the worker, before anything else, whether the link is used."""
        self._queue.appendleft(prepare([Envelope(say).encode()]))
        self._link_settled.set()

    def _give_up_link(self, poller: zmq.Poller, error: ChannelError) -> None:
        """The worker cannot be reached over the link: payloads travel inside."""
        assert self._pairing is not None, "it was taken over"
        poller.unregister(self._pairing.fileno())
        self._pairing.close()
        self._pairing = self._chosen = None
        _log.warning("payloads to %s travel inside the fabric: %s", self.endpoint, error.message)
        self._settle_link(Say.DECLINED)

    def _advance(self, shared: SharedSocket, poller: zmq.Poller | None) -> tuple[bool, Exception | None]:
        """Move payloads beside the fabric; returns whether there is more to do at once, and why the link is lost.

        Without a poller no link begins or is given up any more.
        """
        pairing = self._pairing
        if pairing is None:
            return False, None
        try:
            has_more = pairing.advance()
            if poller is not None and pairing.is_proven and not pairing.is_open:
                pairing.open()
                self._carrier_name = self._chosen.transport.name if self._chosen is not None else ""
                self._settle_link(Say.READY)
                return True, None
            if has_more and not pairing.is_sending:
                self._send_queued(shared)
            return has_more or not pairing.arm(), None
        except ChannelError as error:
            if poller is None or pairing.is_open:
                return False, error
            self._give_up_link(poller, error)
            return True, None
        except Exception as error:
            return False, error

    def _close_payload_link(self) -> None:
        pairing, chosen = self._pairing, self._chosen
        self._pairing = self._chosen = None
        if pairing is not None:
            pairing.close()
        elif chosen is not None:
            chosen.link.close()

    def _receive(self, shared: SharedSocket, at_most: int = MESSAGES_PER_TURN) -> Exception | None:
        """Deliver messages that are there; return what the receiver raised."""
        for _ in range(at_most):
            frames = shared.receive(self._options.max_frames)
            if frames is None:
                return None
            if len(frames) > self._options.max_frames:
                return RemoteProtocolError(f"a message of over {self._options.max_frames} frames")
            try:
                self._deliver(views(frames))
            except Exception as error:
                return error
        return None

    def _deliver(self, frames: list[memoryview]) -> None:
        if self._pairing is None:
            self._on_message(frames)
        else:
            self._pairing.arrived(frames)

    def _receive_rest(self, shared: SharedSocket) -> Exception | None:
        """Deliver what came before the connection ended; the socket holds no more than its queue."""
        lost = self._receive(shared, self._options.receive_queue_messages + MESSAGES_PER_TURN)
        has_more = True
        while has_more and lost is None:
            has_more, lost = self._advance(shared, None)
        return lost

    def _went_away(self) -> WorkerLostError:
        silence_s = self._options.heartbeat_timeout_ms / 1000
        return WorkerLostError(
            f"the connection to {self.endpoint} went away: the worker ended, cut it or was silent for {silence_s:g} s"
        )
