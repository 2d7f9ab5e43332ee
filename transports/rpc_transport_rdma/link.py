"""One connection: a stream of bytes each way, cut into chunks that travel through registered slots.

Belongs here: posting, completions, waiting. Must not be here: devices (`device`), memory (`slots`), credits (`window`).

Every message is a send with a number beside it: the count of chunks that its sender has consumed. One with bytes is a
chunk, one without is a bare credit.
"""

from __future__ import annotations

import os
import secrets
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from rpc_backend.plugin_api import ChannelError, ConnectError, PayloadLink
from rpc_transport_rdma import offer as offers
from rpc_transport_rdma.device import Adapter
from rpc_transport_rdma.offer import Offer
from rpc_transport_rdma.slots import CHUNK_NBYTES, register_slots
from rpc_transport_rdma.verbs import AccessFlags, QPType, SendFlags, WCFlags, WCStatus, WROpcode
from rpc_transport_rdma.window import CREDIT_PLACES, Window

SPIN_S = 30e-6
_CREDIT = 1 << 32  # added to the number of a work request that is a bare credit
_POLL_AT_ONCE = 32
# 2^16 times 4.096 us for an answer, seven times over: about two seconds. A dead peer is noticed by the fabric much
# earlier; this must not end a link to a slow one. An empty ring is waited for without end, and credits prevent it.
_TIMEOUT, _RETRY_COUNT, _RNR_RETRY, _RNR_TIMER = 16, 7, 7, 12
_HOP_LIMIT = 64


class RdmaLink(PayloadLink):
    """A `PayloadLink` over one reliable queue pair."""

    def __init__(self, adapter: Adapter, owner: object = None) -> None:
        """Take memory and a queue pair, and post all receives; `owner` keeps the device open as long as the link lives.

        Raises:
            ConnectError: the device refuses; the message says what.
        """
        self._adapter = adapter
        self._owner = owner
        self._verbs = adapter.verbs
        self._broken: ChannelError | None = None
        self._window = Window(0)
        self._chunk_nbytes = CHUNK_NBYTES
        self._open: list[Any] = []  # in the order of creation
        self._requests: list[Any] = []
        self._qp: Any = None
        self._send_queue: Any = None
        self._receive_queue: Any = None
        self._channel: Any = None
        self._is_connected = self._is_proven = False
        self._arrived: deque[tuple[int, int]] = deque()  # slot and bytes of chunks that came
        self._offset = 0  # what was read of the first
        self._credits_under_way = 0
        try:
            with self._foreign(ConnectError, "a connection cannot be set up"):
                self._set_up()
        except BaseException:
            self.close()
            raise
        self._free = deque(range(self._sends.n))

    @property
    def offer(self) -> bytes:
        with self._foreign(ConnectError, "its address cannot be read"):
            adapter = self._adapter
            info = self._verbs.local_qp_info(
                self._qp, adapter.port_attr, adapter.gid, port=adapter.port, psn=self._first_number
            )
            places = self._receives.n - CREDIT_PLACES
            return Offer(CHUNK_NBYTES, places, CREDIT_PLACES, info.to_bytes()).encode()

    def connect(self, offer: bytes) -> None:
        theirs = offers.decode(offer, CREDIT_PLACES)
        try:
            peer = self._verbs.QPInfo.from_bytes(theirs.address)
        except ValueError as error:
            raise ConnectError(f"rdma: the other side's address cannot be read: {error}") from error
        mtu = min(int(self._adapter.port_attr.active_mtu), int(peer.mtu))
        with self._foreign(ConnectError, "the other side cannot be reached"):
            self._qp.to_rtr(peer, sgid_index=self._adapter.gid_index, mtu=mtu, min_rnr_timer=_RNR_TIMER)
            self._qp.to_rts(self._first_number, timeout=_TIMEOUT, retry_cnt=_RETRY_COUNT, rnr_retry=_RNR_RETRY)
        self._window = Window(theirs.data_places)
        self._chunk_nbytes = min(CHUNK_NBYTES, theirs.chunk_nbytes)
        self._is_connected = True

    def probe(self) -> None:
        self._check()
        self._post_credit()

    @property
    def is_proven(self) -> bool:
        return self._is_proven

    def advance(self) -> None:
        self._poll()

    def send(self, data: memoryview) -> int:
        self._check()
        taken = 0
        if self._broken is not None:
            return taken
        while taken < data.nbytes and self._free and self._window.may_send:
            nbytes = min(self._chunk_nbytes, data.nbytes - taken)
            slot = self._free.popleft()
            np.copyto(self._sends.bytes_of(slot)[:nbytes], np.frombuffer(data[taken : taken + nbytes], np.uint8))
            self._post_send(slot, [self._sends.piece(slot, nbytes)])
            self._window.sent()
            taken += nbytes
        return taken

    def receive_into(self, data: memoryview) -> int:
        self._check()
        received, emptied = 0, list[int]()
        target = np.frombuffer(data, np.uint8) if data.nbytes else np.empty(0, np.uint8)
        while received < data.nbytes and self._arrived:
            slot, size = self._arrived[0]
            nbytes = min(size - self._offset, data.nbytes - received)
            source = self._receives.bytes_of(slot)[self._offset : self._offset + nbytes]
            np.copyto(target[received : received + nbytes], source)
            received += nbytes
            self._offset += nbytes
            if self._offset == size:
                self._arrived.popleft()
                self._offset = 0
                self._window.consumed()
                emptied.append(slot)
        if emptied and self._broken is None:
            self._post_receives(emptied)
            self._return_credits()
        return received

    @property
    def is_idle(self) -> bool:
        return self._broken is not None or len(self._free) == self._sends.n

    def fileno(self) -> int:
        return self._fd

    def arm(self, is_expecting: bool) -> bool:
        if is_expecting:
            deadline_s = time.monotonic() + SPIN_S
            while time.monotonic() < deadline_s:
                if self._poll():
                    return False
        self._check()
        if self._broken is not None:
            return not is_expecting
        with self._foreign(ChannelError, "the link broke"):
            while self._events.poll(0):
                self._channel.get_cq_event().ack_events(1)
            self._send_queue.req_notify()
            self._receive_queue.req_notify()
        return not self._poll()

    def close(self) -> None:
        self._broken = self._broken or ChannelError("rdma: the link was closed")
        while self._open:
            # A device that is gone cannot take anything back; the memory is let go all the same.
            with suppress(OSError):
                self._open.pop().close()
        self._arrived.clear()
        # They keep the memory, and a closed channel may keep the link until the garbage collector comes.
        self._requests.clear()
        self._qp = self._send_queue = self._receive_queue = self._channel = None

    def _set_up(self) -> None:
        adapter, verbs = self._adapter, self._verbs
        self._receives, self._sends = register_slots(adapter)
        self._open += [self._receives, self._sends]
        self._channel = self._keep(adapter.context.create_comp_channel())
        self._fd = self._channel.fd
        os.set_blocking(self._fd, False)
        self._events = select.poll()
        self._events.register(self._fd, select.POLLIN)
        n_sends = self._sends.n + CREDIT_PLACES
        self._send_queue = self._keep(adapter.context.create_cq(n_sends, self._channel))
        self._receive_queue = self._keep(adapter.context.create_cq(self._receives.n, self._channel))
        attributes = verbs.QPInitAttr(
            send_cq=self._send_queue,
            recv_cq=self._receive_queue,
            qp_type=int(QPType.RC),
            max_send_wr=n_sends,
            max_recv_wr=self._receives.n,
        )
        self._qp = self._keep(adapter.domain.create_qp(attributes))
        self._first_number = secrets.randbits(24)
        self._qp.to_init(adapter.port, int(AccessFlags.LOCAL_WRITE))
        self._requests = [
            verbs.RecvWR(wr_id=slot, sg_list=[self._receives.piece(slot)]) for slot in range(self._receives.n)
        ]
        self._post_receives(range(self._receives.n))

    def _keep(self, made: Any) -> Any:
        self._open.append(made)
        return made

    def _poll(self) -> bool:
        """Take completions that are there; return whether there were any: then there may be more."""
        self._check()
        if self._broken is not None:
            return False
        try:
            sent = self._drain(self._send_queue, self._on_sent)  # first: where a send failed, receives are flushed
            received = self._drain(self._receive_queue, self._on_received)
            self._return_credits()
        except OSError as error:
            raise self._break(str(error)) from error
        except ChannelError:
            self._take_rest()
            self._check()
            return False
        return sent or received

    def _take_rest(self) -> None:
        """The link broke: what had come before can still be read, as when the other side sent its last and closed."""
        with suppress(OSError):
            while completions := self._receive_queue.poll(_POLL_AT_ONCE):
                for completion in completions:
                    if completion.status == WCStatus.SUCCESS and completion.byte_len:
                        self._arrived.append((completion.wr_id, completion.byte_len))

    def _drain(self, queue: Any, take: Callable[[Any], None]) -> bool:
        completions = queue.poll(_POLL_AT_ONCE)
        for completion in completions:
            if completion.status != WCStatus.SUCCESS:
                raise self._break(_explain(completion.status))
            take(completion)
        return bool(completions)

    def _on_sent(self, completion: Any) -> None:
        self._is_proven = True
        if completion.wr_id & _CREDIT:
            self._credits_under_way -= 1
        else:
            self._free.append(completion.wr_id)

    def _on_received(self, completion: Any) -> None:
        if not completion.wc_flags & WCFlags.WITH_IMM:
            raise self._break("a message came without its count of credits")
        try:
            self._window.told(completion.imm_data)
        except ChannelError as error:
            raise self._break(error.message) from None
        if completion.byte_len:
            self._arrived.append((completion.wr_id, completion.byte_len))
        else:
            self._post_receives([completion.wr_id])

    def _return_credits(self) -> None:
        if self._window.owes_credit and self._is_connected and self._credits_under_way < CREDIT_PLACES:
            self._post_credit()

    def _post_credit(self) -> None:
        self._post_send(_CREDIT, [])
        self._credits_under_way += 1

    def _post_send(self, number: int, pieces: list[Any]) -> None:
        request = self._verbs.SendWR(
            wr_id=number,
            sg_list=pieces,
            opcode=int(WROpcode.SEND_WITH_IMM),
            send_flags=int(SendFlags.SIGNALED),
            imm_data=self._window.tell(),
        )
        try:
            self._qp.post_send(request)
        except OSError as error:
            raise self._break(str(error)) from error

    def _post_receives(self, slots: Sequence[int]) -> None:
        try:
            self._qp.post_recv([self._requests[slot] for slot in slots])
        except OSError as error:
            raise self._break(str(error)) from error

    def _check(self) -> None:
        """Raise what broke the link, once all that came before is read."""
        if self._broken is not None and not self._arrived:
            raise ChannelError(self._broken.message)

    def _break(self, reason: str) -> ChannelError:
        self._broken = self._broken or ChannelError(f"rdma: the link broke: {reason}")
        return self._broken

    @contextmanager
    def _foreign(self, error_class: type[ChannelError], what: str) -> Iterator[None]:
        """Map the provider's errors to ours."""
        try:
            yield
        except OSError as error:
            raise error_class(f"rdma: {what}: {error} (device {self._adapter.name})") from error


_MEANINGS = {
    WCStatus.RETRY_EXC_ERR: "the other side does not answer any more",
    WCStatus.RNR_RETRY_EXC_ERR: "the other side has no receive posted",
    WCStatus.LOC_LEN_ERR: "a message was larger than the receive posted for it",
    WCStatus.REM_INV_REQ_ERR: "the other side refused a message as too large",
    WCStatus.LOC_PROT_ERR: "memory was used that is not registered",
    WCStatus.WR_FLUSH_ERR: "its queue pair is in the error state",
}


def _explain(status: int) -> str:
    try:
        known = WCStatus(status)
    except ValueError:
        return f"status {status}"
    meaning = _MEANINGS.get(known, "")
    return f"{known.name}: {meaning}" if meaning else known.name
