"""The sending half of a queue pair: it finds the peer, transmits what was posted, and gives up by the rules.

Belongs here: the connection that sends, retries, and the order of failures. Must not be here: how payloads travel.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from rpc_transport_rdma.soft.addresses import is_local, start_connecting
from rpc_transport_rdma.soft.carriers import Carrier, SharedCarrier, StreamCarrier
from rpc_transport_rdma.soft.frames import FRAME, Frame, Hello, HelloFlags, Kind, retry_budget_s
from rpc_transport_rdma.soft.nic import READABLE, WRITABLE, Nic
from rpc_transport_rdma.soft.queues import NO_RNR_LIMIT, Queues
from rpc_transport_rdma.verbs import QPState, WCStatus

_READ_NBYTES = 64 * FRAME.size
_LEAST_RETRY_S = 1e-3
_CONNECT_PATIENCE_S = 5.0  # for a host that does not answer at all


class Sender:
    """Sends what its queue pair posted. Only the device's thread calls it."""

    def __init__(self, nic: Nic, queues: Queues, gid: bytes) -> None:
        self._nic, self._queues, self._gid = nic, queues, gid
        self._carrier: Carrier | None = None
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._welcome = self._was_welcome = self._transmitting = self._closed = False
        self._failing: WCStatus | None = None  # of the newest send in flight; told when all before it are complete
        self._refusals = 0
        self._refused_for_s: float | None = None
        self._retry_at = self._hold_until = 0.0
        self._give_up_at: float | None = None

    def progress(self) -> None:
        """Do what can be done now."""
        queues = self._queues
        if self._closed or queues.state != QPState.RTS or not (queues.posted or queues.in_flight):
            return
        if self._socket is None:
            self._find_peer()
        elif self._welcome:
            self._transmit()

    def close(self) -> None:
        """Let go of the connection; the peer sees silence."""
        self._closed = True
        self._disconnect()

    # The connection

    def _find_peer(self) -> None:
        """Connect, again and again until the retries are used up. A connection that was lost is not made again."""
        now = time.monotonic()
        path = self._queues.path
        budget_s = retry_budget_s(path.timeout, path.retry_cnt)
        if self._give_up_at is None and budget_s is not None:
            self._give_up_at = now + budget_s
            self._nic.call_at(self._give_up_at, self.progress)
        if self._give_up_at is not None and now >= self._give_up_at:
            self._queues.fail(send=WCStatus.RETRY_EXC_ERR)
        elif not self._was_welcome and now >= self._retry_at:
            self._retry_at = now + _LEAST_RETRY_S
            self._nic.call_at(self._retry_at, self.progress)
            self._connect()

    def _connect(self) -> None:
        path = self._queues.path
        self._socket = start_connecting(path.gid, path.lid)
        if self._socket is None:
            return
        shared = self._queues.options.carrier == "ring" and is_local(path.gid)
        finite = HelloFlags.FINITE_RNR if path.rnr_retry != NO_RNR_LIMIT else 0
        hello = Hello(
            (HelloFlags.SHARED if shared else 0) | finite,
            path.qp_num, self._queues.qp_num, path.send_psn, self._gid, path.gid,
        )  # fmt: skip
        make = SharedCarrier if shared else StreamCarrier
        self._carrier = make(self._socket, self._queues, hello.pack())
        self._nic.watch(self._socket.fileno(), READABLE | WRITABLE, self._on_event)
        if not is_local(path.gid):
            connecting = self._socket
            self._nic.call_at(time.monotonic() + _CONNECT_PATIENCE_S, lambda: self._stop_connecting(connecting))

    def _stop_connecting(self, connecting: socket.socket) -> None:
        """Treat a host that answered nothing at all as one that refused."""
        if self._socket is connecting and not self._welcome and self._carrier is not None and self._carrier.waits:
            self._lost()

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._nic.forget(self._socket.fileno())
            self._socket.close()
        self._socket, self._carrier, self._welcome = None, None, False

    def _lost(self) -> None:
        """The peer closed the connection, refused it, or never was there."""
        self._disconnect()
        self._received.clear()
        self.progress()

    def _on_event(self, mask: int) -> None:
        carrier = self._carrier
        if carrier is None or self._closed:
            return
        if mask & ~WRITABLE:
            self._read()
        if mask & WRITABLE and self._carrier is carrier:
            if carrier.flush() is None:
                self._lost()
                return
            self.progress()
            self._watch()

    def _watch(self) -> None:
        if self._socket is not None and self._carrier is not None:
            mask = READABLE | WRITABLE if self._carrier.waits else READABLE
            self._nic.watch(self._socket.fileno(), mask, self._on_event)

    # What the peer says

    def _read(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_READ_NBYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        self._received += data
        whole = len(self._received) // FRAME.size * FRAME.size
        frames = [Frame._make(fields) for fields in FRAME.iter_unpack(bytes(self._received[:whole]))]
        del self._received[:whole]
        for frame in frames:
            if self._closed or self._queues.state != QPState.RTS:
                return
            self._hear(frame)
        self.progress()

    def _hear(self, frame: Frame) -> None:
        act: Callable[[Frame], None] | None = {
            Kind.WELCOME: self._on_welcome, Kind.ACK: self._on_ack, Kind.ROOM: self._on_room,
            Kind.NAK: self._on_nak, Kind.RNR: self._on_refusal,
        }.get(frame.kind)  # type: ignore[call-overload]  # fmt: skip
        if act is None:
            self._lost()
        else:
            act(frame)

    def _on_welcome(self, _: Frame) -> None:
        self._welcome = self._was_welcome = True
        self._give_up_at = None

    def _on_ack(self, frame: Frame) -> None:
        self._refusals = 0
        self._on_room(frame)
        self._queues.complete_sends(frame.value)

    def _on_room(self, frame: Frame) -> None:
        if self._carrier is not None:
            self._carrier.consumed(frame.position)

    def _on_nak(self, frame: Frame) -> None:
        self._queues.fail(send=WCStatus(frame.status))

    def _on_refusal(self, frame: Frame) -> None:
        """No receive was posted: send the only message in flight again, or give up."""
        self._refusals += 1
        if self._refusals > self._queues.path.rnr_retry:
            self._queues.fail(send=WCStatus.RNR_RETRY_EXC_ERR)
            return
        self._refused_for_s = frame.value * 1e-6
        if not self._transmitting:
            self._send_again()

    def _send_again(self) -> None:
        if self._refused_for_s is None or not self._queues.in_flight:
            return
        self._queues.posted.appendleft(self._queues.in_flight.pop())
        self._hold_until = time.monotonic() + self._refused_for_s
        self._refused_for_s = None
        self._nic.call_at(self._hold_until, self.progress)

    # Transmitting

    def _transmit(self) -> None:
        assert self._carrier is not None
        while self._failing is None:
            if not self._transmitting and not self._begin():
                break
            self._transmitting = False
            done = self._carrier.push()
            if done is None:
                self._failing = WCStatus.LOC_PROT_ERR
            elif not done:
                self._transmitting = True
                break
            else:
                self._send_again()
        if self._failing is not None and len(self._queues.in_flight) == 1:
            self._queues.fail(send=self._failing)
            return
        if self._carrier.flush() is None:
            self._lost()
        else:
            self._watch()

    def _begin(self) -> bool:
        """Take the next posted send; False when there is none that may go now."""
        queues, now = self._queues, time.monotonic()
        if not queues.posted or now < self._hold_until:
            return False
        if queues.path.rnr_retry != NO_RNR_LIMIT and queues.in_flight:
            return False  # one at a time, so that a refused one can be sent again
        record = queues.posted[0]
        if record.ready_at > now:
            self._nic.call_at(record.ready_at, self.progress)
            return False
        queues.in_flight.append(queues.posted.popleft())
        regions = [] if record.inline is not None else queues.regions_of(record, writing=False)
        if regions is None:
            self._failing = WCStatus.LOC_PROT_ERR
            return False
        assert self._carrier is not None
        self._carrier.begin(record, regions)
        return True
