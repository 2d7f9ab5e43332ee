"""The queues of a reliable connection: what may be posted when, and what completes how.

Belongs here: states, depths, and the rules of completion. Must not be here: how bytes travel.
"""

from __future__ import annotations

import ctypes
import errno
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rpc_transport_rdma.soft.completions import CQ
from rpc_transport_rdma.soft.frames import Flags
from rpc_transport_rdma.soft.memory import Region, RegionTable
from rpc_transport_rdma.soft.options import SoftOptions
from rpc_transport_rdma.soft.values import MAX_MESSAGE_NBYTES, SENDS, SGE, WC, QPCap, RecvWR, SendWR, VerbsError
from rpc_transport_rdma.verbs import QPState, SendFlags, WCFlags, WCOpcode, WCStatus, WROpcode

NO_RNR_LIMIT = 7
# Plain integers: operations of enumerations cost more than all the rest of posting.
_SIGNALED, _SOLICITED, _INLINE = int(SendFlags.SIGNALED), int(SendFlags.SOLICITED), int(SendFlags.INLINE)
_WITH_IMM, _IS_SOLICITED = int(Flags.WITH_IMM), int(Flags.SOLICITED)
_SENDS = frozenset(map(int, SENDS))


class SendRecord:
    """A posted send."""

    __slots__ = ("flags", "imm_data", "inline", "nbytes", "pieces", "ready_at", "signaled", "wr_id")

    def __init__(self, request: SendWR, signaled: bool, ready_at: float) -> None:
        self.wr_id, self.pieces, self.imm_data = request.wr_id, request.sg_list, request.imm_data
        self.nbytes = sum(piece.length for piece in request.sg_list)
        self.signaled, self.ready_at = signaled, ready_at
        self.flags = _WITH_IMM if request.opcode == WROpcode.SEND_WITH_IMM else 0
        if request.send_flags & _SOLICITED:
            self.flags |= _IS_SOLICITED
        self.inline: bytes | None = None

    def copy_inline(self) -> None:
        """Keep the bytes themselves: the buffer is not looked at again."""
        self.inline = b"".join(ctypes.string_at(piece.addr, piece.length) for piece in self.pieces)


class ReceiveRecord:
    """A posted receive."""

    __slots__ = ("capacity", "pieces", "ready_at", "wr_id")

    def __init__(self, request: RecvWR, ready_at: float) -> None:
        self.wr_id, self.pieces, self.ready_at = request.wr_id, request.sg_list, ready_at
        self.capacity = sum(piece.length for piece in request.sg_list)


@dataclass
class Path:
    """The way to the peer and how long to try it."""

    qp_num: int = 0
    gid: bytes = b""
    lid: int = 0
    receive_psn: int = 0
    send_psn: int = 0
    rnr_timer: int = 12
    rnr_retry: int = NO_RNR_LIMIT
    retry_cnt: int = 7
    timeout: int = 14


class Doorbell(Protocol):
    """Where a queue pair says that there is something to do."""

    def ring(self, queues: Queues) -> None:
        """Have it attended soon."""

    def attend_now(self, queues: Queues) -> None:
        """Have it attended at once by the calling thread, or soon if the device is busy."""


class Queues:
    """The state and the queues of one queue pair. Program and device threads both use it."""

    def __init__(
        self, qp_num: int, cap: QPCap, queues: tuple[CQ, CQ], signal_all: bool, owner_pd: int,
        regions: RegionTable, options: SoftOptions, doorbell: Doorbell,
    ) -> None:  # fmt: skip
        self.qp_num, self.cap, self.owner_pd, self.regions, self.options = qp_num, cap, owner_pd, regions, options
        self.send_cq, self.recv_cq = queues
        self.path = Path()
        self.state, self.closed = QPState.RESET, False
        self.posted: deque[SendRecord] = deque()
        self.in_flight: deque[SendRecord] = deque()
        self.receives: deque[ReceiveRecord] = deque()
        self._signal_all, self._doorbell = signal_all, doorbell
        self._lock = threading.Lock()
        self._sends_used = self._receives_used = self._unsignaled = 0
        self._starving = False  # a message waits for a receive
        self._random = random.Random(options.seed * 1_000_003 + qp_num) if options.transmit_delay_s else None

    # The program's side

    def post_send(self, requests: Sequence[SendWR]) -> None:
        """Queue sends; those before a refused one stay queued."""
        try:
            for request in requests:
                with self._lock:
                    self._post_send(request)
        finally:
            self._doorbell.attend_now(self)

    def _post_send(self, request: SendWR) -> None:
        if self.state not in (QPState.RTS, QPState.ERR):
            raise VerbsError("ibv_post_send", errno.EINVAL)
        record = SendRecord(request, self._is_signaled(request), self._ready_at(self._delay()))
        if request.opcode not in _SENDS:
            raise VerbsError("ibv_post_send", errno.EOPNOTSUPP, f"the software model has no opcode {request.opcode}")
        if len(record.pieces) > self.cap.max_send_sge or record.nbytes > MAX_MESSAGE_NBYTES:
            raise VerbsError("ibv_post_send", errno.EINVAL)
        is_inline = bool(request.send_flags & _INLINE)
        if is_inline and record.nbytes > self.cap.max_inline_data:
            raise VerbsError("ibv_post_send", errno.EINVAL)
        if self._sends_used >= self.cap.max_send_wr:
            raise VerbsError("ibv_post_send", errno.ENOMEM)
        if is_inline:
            record.copy_inline()
        self._sends_used += 1
        if self.state == QPState.ERR:
            self._end_send(record, WCStatus.WR_FLUSH_ERR)
        else:
            self.posted.append(record)

    def _is_signaled(self, request: SendWR) -> bool:
        return self._signal_all or bool(request.send_flags & _SIGNALED)

    def _delay(self) -> float:
        return self._random.random() * self.options.transmit_delay_s if self._random else 0.0

    @staticmethod
    def _ready_at(delay_s: float) -> float:
        return time.monotonic() + delay_s if delay_s else 0.0

    def post_recv(self, requests: Sequence[RecvWR]) -> None:
        """Queue receives; those before a refused one stay queued."""
        for request in requests:
            with self._lock:
                self._post_recv(request)
                starved, self._starving = self._starving, False
            if starved:
                self._doorbell.ring(self)

    def _post_recv(self, request: RecvWR) -> None:
        if self.state == QPState.RESET or len(request.sg_list) > self.cap.max_recv_sge:
            raise VerbsError("ibv_post_recv", errno.EINVAL)
        if self._receives_used >= self.cap.max_recv_wr:
            raise VerbsError("ibv_post_recv", errno.ENOMEM)
        self._receives_used += 1
        record = ReceiveRecord(request, self._ready_at(self.options.receive_delay_s))
        if self.state == QPState.ERR:
            self._end_receive(record, WCStatus.WR_FLUSH_ERR)
        else:
            self.receives.append(record)

    def move(self, old: QPState, new: QPState, verb: str) -> None:
        """Change the state, or raise EINVAL when it is not `old`."""
        with self._lock:
            if self.state != old:
                raise VerbsError(verb, errno.EINVAL)
            self.state = new
        self._doorbell.ring(self)

    def release(self, sends: int, receives: int) -> None:
        """Take slots back whose completion was polled."""
        with self._lock:
            self._sends_used -= sends
            self._receives_used -= receives

    def close(self) -> None:
        """End everything without completions. Takes no lock: finalizers call it."""
        self.closed = True
        self._doorbell.ring(self)

    # The device's side

    @property
    def is_alive(self) -> bool:
        """Whether the peer's packets are answered at all."""
        return not self.closed and self.state in (QPState.RTR, QPState.RTS)

    def next_receive(self) -> ReceiveRecord | None:
        """Take the oldest receive that the device may see, if any."""
        with self._lock:
            if not self.receives or self.state == QPState.ERR or self.receives[0].ready_at > time.monotonic():
                self._starving = True
                return None
            return self.receives.popleft()

    def regions_of(self, record: SendRecord | ReceiveRecord, writing: bool) -> list[Region] | None:
        """Return the region of each piece, or None when one may not be accessed so."""
        found = [self.regions.find(piece, self.owner_pd, writing) for piece in record.pieces]
        return None if None in found else [region for region in found if region is not None]

    def complete_sends(self, count: int) -> None:
        """Complete the oldest sends in flight: the peer's device has placed their bytes."""
        with self._lock:
            for _ in range(count):
                if self.in_flight and not self.closed:
                    self._end_send(self.in_flight.popleft(), WCStatus.SUCCESS)

    def complete_receive(self, record: ReceiveRecord, nbytes: int, imm_data: int, flags: int) -> None:
        """Complete a receive that was taken: its bytes are in place."""
        with self._lock:
            if self.state == QPState.ERR:
                self._end_receive(record, WCStatus.WR_FLUSH_ERR)
            elif not self.closed:
                self._end_receive(record, WCStatus.SUCCESS, nbytes, imm_data, flags)

    def fail(self, send: WCStatus | None = None, receive: tuple[ReceiveRecord, WCStatus] | None = None) -> None:
        """Enter the error state: the oldest send or the taken receive with its status, all others flushed."""
        with self._lock:
            if self.closed or self.state == QPState.ERR:
                return
            self.state = QPState.ERR
            if receive is not None:
                self._end_receive(*receive)
            for record in [*self.in_flight, *self.posted]:
                self._end_send(record, WCStatus.WR_FLUSH_ERR if send is None else send)
                send = None
            for waiting in self.receives:
                self._end_receive(waiting, WCStatus.WR_FLUSH_ERR)
            for queue in (self.in_flight, self.posted, self.receives):
                queue.clear()
        self._doorbell.ring(self)

    def flush_taken(self, record: ReceiveRecord) -> None:
        """End a taken receive when the connection ended in the middle of its message: put it back in front."""
        with self._lock:
            if self.state == QPState.ERR:
                self._end_receive(record, WCStatus.WR_FLUSH_ERR)
            else:
                self.receives.appendleft(record)

    def _end_send(self, record: SendRecord, status: WCStatus) -> None:
        self._unsignaled += 1
        if status == WCStatus.SUCCESS and not record.signaled:
            return
        wc = WC(record.wr_id, status, WCOpcode.SEND, self.qp_num)
        self.send_cq.push(wc, self, (self._unsignaled, 0), False)
        self._unsignaled = 0

    def _end_receive(
        self, record: ReceiveRecord, status: WCStatus, nbytes: int = 0, imm_data: int = 0, flags: int = 0
    ) -> None:
        carries = WCFlags.WITH_IMM if flags & _WITH_IMM else 0
        wc = WC(record.wr_id, status, WCOpcode.RECV, self.qp_num, nbytes, imm_data if carries else 0, carries)
        self.recv_cq.push(wc, self, (0, 1), bool(flags & _IS_SOLICITED))


def piece_bounds(pieces: Sequence[SGE], nbytes: int) -> list[tuple[int, int]]:
    """Return (address, nbytes) of the pieces that `nbytes` bytes fill, the last one cut."""
    bounds, left = [], nbytes
    for piece in pieces:
        taken = min(piece.length, left)
        if taken:
            bounds.append((piece.addr, taken))
        left -= taken
    return bounds
