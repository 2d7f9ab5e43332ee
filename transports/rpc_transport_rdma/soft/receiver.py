"""The receiving half of a queue pair: one send fills one receive, and what does not fit ends both.

Belongs here: what a connection brings, where it is put, and what is answered. Must not be here: sending.
"""

from __future__ import annotations

import array
import os
import socket
import time
from collections import deque
from collections.abc import Callable

from rpc_transport_rdma.soft.frames import FRAME, HELLO, RNR_TIMER_S, Frame, Hello, HelloFlags, Kind
from rpc_transport_rdma.soft.memory import MappedMemory, Region, copy_in, view
from rpc_transport_rdma.soft.nic import READABLE, WRITABLE, Nic
from rpc_transport_rdma.soft.queues import Queues, ReceiveRecord, piece_bounds
from rpc_transport_rdma.soft.values import MAX_MESSAGE_NBYTES
from rpc_transport_rdma.verbs import WCStatus

_READ_NBYTES = 64 * FRAME.size
_MOST_DESCRIPTORS = 64
_ACK_NBYTES = 512 * 1024  # a sender that waits for slots hears at least this often, and when all that came is placed
_GREETING_TIMEOUT_S = 5.0
_SCRATCH_NBYTES = 64 * 1024


class PeerError(Exception):
    """The peer broke the rules of the connection, or left; it is cut."""


class Receiver:
    """One accepted connection. Only the device's thread calls it."""

    def __init__(
        self, nic: Nic, connection: socket.socket,
        find: Callable[[Hello, Receiver], Queues | None], leave: Callable[[Receiver], None],
    ) -> None:  # fmt: skip
        """`find` returns the queue pair that a greeting may send to; `leave` forgets this connection."""
        self._nic, self._socket, self._find, self._leave = nic, connection, find, leave
        self._queues: Queues | None = None
        self._closed = self._ending = self._finite = False
        self._is_local = connection.family == socket.AF_UNIX
        self._shared = False
        self._in, self._out = bytearray(), bytearray()
        self._memories: dict[int, MappedMemory] = {}
        self._descriptors: deque[int] = deque()
        self._message: Frame | None = None
        self._waits = self._discarding = False
        self._record: ReceiveRecord | None = None
        self._places: deque[tuple[int, int, Region]] = deque()
        self._missing = self._acknowledged = self._unacknowledged_nbytes = self._consumed = 0
        nic.watch(connection.fileno(), READABLE, self._on_event)
        nic.call_at(time.monotonic() + _GREETING_TIMEOUT_S, self._check_greeted)

    def close(self) -> None:
        """Let go of the connection; a message that was not whole leaves no trace."""
        if self._closed:
            return
        self._closed = True
        self._nic.forget(self._socket.fileno())
        self._socket.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._memories.clear()
        if self._record is not None and self._queues is not None:
            self._queues.flush_taken(self._record)
        self._leave(self)

    def progress(self) -> None:
        """Go on after receives were posted or the state changed."""
        if self._queues is not None and not self._queues.is_alive:
            self._end()
        elif not self._closed:
            self._guard(self._work)

    def _end(self) -> None:
        """Close once the last answer is out."""
        self._ending = True
        if not self._flush() or not self._out:
            self.close()
        else:
            self._watch()

    def _on_event(self, mask: int) -> None:
        if (mask & WRITABLE and not self._flush()) or (self._ending and not self._out):
            self.close()
        elif mask & ~WRITABLE:
            self._guard(self._arrive)

    def _guard(self, act: Callable[[], None]) -> None:
        try:
            act()
        except (PeerError, OSError):
            self.close()
            return
        if not self._closed:
            self._acknowledge()
            if not self._flush():
                self.close()
            self._watch()

    def _watch(self) -> None:
        if self._closed:
            return
        mask = (0 if self._waits or self._ending else READABLE) | (WRITABLE if self._out else 0)
        if mask:
            self._nic.watch(self._socket.fileno(), mask, self._on_event)
        else:
            self._nic.forget(self._socket.fileno())  # nothing more is taken off the wire while no receive is posted

    def _check_greeted(self) -> None:
        if self._queues is None:
            self.close()

    # Reading

    def _arrive(self) -> None:
        if self._queues is None:
            self._read_frames(HELLO.size - len(self._in))
            if len(self._in) >= HELLO.size:
                self._greet()
        elif self._shared:
            self._read_frames(_READ_NBYTES)
        elif self._missing:
            self._read_payload()
        else:
            self._read_frames(FRAME.size - len(self._in))
        self._work()

    def _read_frames(self, most: int) -> None:
        try:
            data = self._read_with_descriptors(most) if self._is_local else self._socket.recv(most)
        except BlockingIOError:
            return
        if not data:
            raise PeerError
        self._in += data

    def _read_with_descriptors(self, most: int) -> bytes:
        data, ancillary, _, _ = self._socket.recvmsg(
            most, socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array.array("i")
                found.frombytes(content[: len(content) // found.itemsize * found.itemsize])
                self._descriptors.extend(found)
        return data

    def _greet(self) -> None:
        hello = Hello.unpack(bytes(self._in[: HELLO.size]))
        del self._in[: HELLO.size]
        self._queues = self._find(hello, self) if hello is not None else None
        if self._queues is None or hello is None:
            raise PeerError
        self._shared = bool(hello.flags & HelloFlags.SHARED) and self._is_local
        self._finite = bool(hello.flags & HelloFlags.FINITE_RNR)
        self._out += Frame(Kind.WELCOME).pack()

    def _work(self) -> None:
        """Handle what was read, until something is missing."""
        if self._queues is None:
            return
        while not self._ending:
            if self._message is not None and self._record is None and not self._discarding and not self._admit():
                return
            if self._missing and not self._shared:
                self._read_payload()
                if self._missing:
                    return
            if len(self._in) < FRAME.size:
                return
            frame = Frame._make(FRAME.unpack_from(self._in))
            del self._in[: FRAME.size]
            self._hear(frame)

    def _hear(self, frame: Frame) -> None:
        if frame.kind == Kind.SEND and self._message is None:
            if frame.nbytes > MAX_MESSAGE_NBYTES:
                raise PeerError
            self._message, self._missing = frame, frame.nbytes
        elif frame.kind == Kind.DATA and self._missing and self._shared:
            self._consumed += frame.nbytes
            self._take_from(frame.arena, frame.position, frame.nbytes)
            if self._missing:
                self._out += Frame(Kind.ROOM, position=self._consumed).pack()
        elif frame.kind == Kind.MEMORY and self._descriptors and len(self._memories) < _MOST_DESCRIPTORS:
            self._map(frame)
        else:
            raise PeerError

    def _map(self, frame: Frame) -> None:
        descriptor = self._descriptors.popleft()
        try:
            self._memories[frame.arena] = MappedMemory(descriptor, frame.position)
        except ValueError as error:
            raise PeerError from error
        finally:
            os.close(descriptor)

    # Placing

    def _admit(self) -> bool:
        """Find the receive of the message that came; False when that must wait, or ended the connection."""
        assert self._queues is not None
        assert self._message is not None
        record = self._queues.next_receive()
        if record is None:
            return self._refuse()
        self._waits = False
        nbytes = self._message.nbytes
        if nbytes > record.capacity:
            self._fail(record, WCStatus.LOC_LEN_ERR, WCStatus.REM_INV_REQ_ERR)
            return False
        regions = self._queues.regions_of(record, writing=True)
        if regions is None:
            self._fail(record, WCStatus.LOC_PROT_ERR, WCStatus.REM_OP_ERR)
            return False
        self._record = record
        kept = [region for region, piece in zip(regions, record.pieces, strict=True) if piece.length]
        self._places = deque(
            (*bound, region) for bound, region in zip(piece_bounds(record.pieces, nbytes), kept, strict=False)
        )
        if self._message.arena:
            self._take_from(self._message.arena, self._message.position, nbytes)
        elif not nbytes:
            self._complete()
        return True

    def _refuse(self) -> bool:
        """No receive is posted: hold the sender off, or tell one that gives up and drop the message."""
        assert self._queues is not None
        assert self._message is not None
        waiting = self._queues.receives
        if waiting:  # the device may not see it yet
            self._nic.call_at(waiting[0].ready_at, self.progress)
        if not self._finite:
            self._waits = True
            return False
        delay_us = round(1e6 * RNR_TIMER_S[self._queues.path.rnr_timer])
        self._out += Frame(Kind.RNR, value=delay_us).pack()
        self._discarding = True
        if self._message.arena or not self._missing:
            self._drop()
        return True

    def _drop(self) -> None:
        self._message, self._missing, self._discarding = None, 0, False
        if self._consumed:
            self._out += Frame(Kind.ROOM, position=self._consumed).pack()

    def _take_from(self, arena: int, position: int, nbytes: int) -> None:
        """Copy a piece of the message out of the peer's memory."""
        memory = self._memories.get(arena)
        if memory is None or nbytes > self._missing or position + nbytes > memory.nbytes:
            raise PeerError
        source, left = memory.address + position, nbytes
        while left and not self._discarding:
            address, room, region = self._places[0]
            count = min(room, left)
            if not copy_in(region, address, source, count):
                self._fail_record(WCStatus.LOC_PROT_ERR)
                return
            self._placed(count)
            source, left = source + count, left - count
        self._missing -= nbytes
        self._finish_if_whole()

    def _read_payload(self) -> None:
        """Read a piece of the message from the stream straight into its place."""
        try:
            if self._discarding:
                count = len(self._socket.recv(min(self._missing, _SCRATCH_NBYTES)))
            else:
                address, room, region = self._places[0]
                region.busy = True
                try:
                    if not region.alive:
                        self._fail_record(WCStatus.LOC_PROT_ERR)
                        return
                    count = self._socket.recv_into(view(address, room))
                finally:
                    region.busy = False
        except BlockingIOError:
            return
        if not count:
            raise PeerError
        if not self._discarding:
            self._placed(count)
        self._missing -= count
        self._finish_if_whole()

    def _placed(self, nbytes: int) -> None:
        address, room, region = self._places.popleft()
        if nbytes < room:
            self._places.appendleft((address + nbytes, room - nbytes, region))

    def _finish_if_whole(self) -> None:
        if not self._missing:
            self._drop() if self._discarding else self._complete()

    def _complete(self) -> None:
        assert self._queues is not None
        assert self._record is not None
        assert self._message is not None
        message, record = self._message, self._record
        self._message = self._record = None
        self._acknowledged += 1
        self._unacknowledged_nbytes += message.nbytes
        self._queues.complete_receive(record, message.nbytes, message.value, message.flags)
        if self._unacknowledged_nbytes >= _ACK_NBYTES:
            self._acknowledge()
            self._flush()

    # Answering

    def _acknowledge(self) -> None:
        if self._acknowledged:
            self._out += Frame(Kind.ACK, value=self._acknowledged, position=self._consumed).pack()
            self._acknowledged = self._unacknowledged_nbytes = 0

    def _fail_record(self, status: WCStatus) -> None:
        record, self._record = self._record, None
        assert record is not None
        self._fail(record, status, WCStatus.REM_OP_ERR)

    def _fail(self, record: ReceiveRecord, ours: WCStatus, theirs: WCStatus) -> None:
        """End both queue pairs: ours now, the peer's when it hears of it."""
        assert self._queues is not None
        self._acknowledge()
        self._out += Frame(Kind.NAK, status=theirs).pack()
        self._ending = True
        self._queues.fail(receive=(record, ours))

    def _flush(self) -> bool:
        """Write what waits; False when the connection is lost."""
        while self._out:
            try:
                count = self._socket.send(self._out)
            except BlockingIOError:
                return True
            except OSError:
                return False
            del self._out[:count]
        return True
