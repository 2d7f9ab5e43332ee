"""How the payload of a send leaves: as a stream behind its frame, or through memory that the peer maps.

Belongs here: writing frames and payloads without waiting. Must not be here: when to send, what an error means.
"""

from __future__ import annotations

import array
import socket
from abc import ABC, abstractmethod
from collections import deque

import numpy as np

from rpc_transport_rdma.soft.frames import FRAME, Frame, Kind
from rpc_transport_rdma.soft.memory import Region, SharedMemory, copy_bytes, copy_out, view
from rpc_transport_rdma.soft.queues import Queues, SendRecord, piece_bounds

_SEND = int(Kind.SEND)


class Carrier(ABC):
    """Writes to the connection of one queue pair."""

    def __init__(self, connection: socket.socket, queues: Queues, hello: bytes) -> None:
        self._socket, self._ring_nbytes = connection, queues.options.ring_nbytes
        self._out = bytearray(hello)
        self._rest: deque[tuple[int, int, Region | None]] = deque()  # address, nbytes; no region: inline
        self._inline: np.ndarray | None = None

    @property
    def waits(self) -> bool:
        """Whether the socket must become writable first."""
        return bool(self._out)

    def begin(self, record: SendRecord, regions: list[Region]) -> None:
        """Take up a message; `regions` are those of its pieces."""
        self._rest.clear()
        if record.inline is not None:
            self._inline = np.frombuffer(record.inline, np.uint8)
            if record.inline:
                self._rest.append((int(self._inline.ctypes.data), len(record.inline), None))
            return
        kept = [region for region, piece in zip(regions, record.pieces, strict=True) if piece.length]
        for (address, nbytes), region in zip(piece_bounds(record.pieces, record.nbytes), kept, strict=True):
            self._rest.append((address, nbytes, region))

    @abstractmethod
    def push(self) -> bool | None:
        """Write more of the message: True when it is out, False when that must wait, None when its memory is gone."""

    def consumed(self, position: int) -> None:
        """Hear how many bytes of shared memory the peer has consumed so far."""

    def flush(self) -> bool | None:
        """Write the frames that wait: True when all are out, None when the connection is lost."""
        while self._out:
            try:
                count = self._write()
            except BlockingIOError:
                return False
            except OSError:
                return None
            del self._out[:count]
        return True

    def _write(self) -> int:
        return self._socket.send(self._out)

    def _advance(self, nbytes: int) -> None:
        address, left, region = self._rest.popleft()
        if nbytes < left:
            self._rest.appendleft((address + nbytes, left - nbytes, region))


class StreamCarrier(Carrier):
    """Writes payloads into the socket, behind their frames."""

    @property
    def waits(self) -> bool:
        return bool(self._out or self._rest)

    def begin(self, record: SendRecord, regions: list[Region]) -> None:
        super().begin(record, regions)
        self._out += Frame(Kind.SEND, record.flags, 0, record.imm_data, record.nbytes).pack()

    def push(self) -> bool | None:
        while self._out or self._rest:
            try:
                count = self._write_both()
            except OSError:  # full; or lost, which the next reading finds
                return False
            if count is None:
                return None
        return True

    def flush(self) -> bool | None:
        return True if self._rest else super().flush()

    def _write_both(self) -> int | None:
        if not self._rest:
            count, region = self._socket.send(self._out), None
        else:
            address, nbytes, region = self._rest[0]
            if region is not None:
                region.busy = True
            try:
                if region is not None and not region.alive:
                    return None
                count = self._socket.sendmsg([self._out, view(address, nbytes)])
            finally:
                if region is not None:
                    region.busy = False
        of_frames = min(count, len(self._out))
        del self._out[:of_frames]
        if count > of_frames:
            self._advance(count - of_frames)
        return count


class SharedCarrier(Carrier):
    """Names shared memory to the peer: that of the send itself if it is shared, else a ring into which it is copied."""

    def __init__(self, connection: socket.socket, queues: Queues, hello: bytes) -> None:
        super().__init__(connection, queues, hello)
        self._ring: SharedMemory | None = None
        self._produced = self._consumed = 0
        self._announced: dict[int, SharedMemory] = {}
        self._descriptors = array.array("i")

    def begin(self, record: SendRecord, regions: list[Region]) -> None:
        arena = position = 0
        shared = regions[0].shared if len(regions) == 1 and record.nbytes else None
        if shared is None:
            super().begin(record, regions)
        else:
            self._rest.clear()
            self._announce(shared)
            arena, position = shared.number, record.pieces[0].addr - shared.address
        self._out += FRAME.pack(_SEND, record.flags, 0, record.imm_data, record.nbytes, arena, position)

    def push(self) -> bool | None:
        if self._rest and self._ring is None:
            self._ring = SharedMemory(self._ring_nbytes)
            self._announce(self._ring)
        while self._rest and self._ring is not None:
            address, nbytes, region = self._rest[0]
            start = self._produced % self._ring_nbytes
            room = min(self._ring_nbytes - start, self._ring_nbytes - (self._produced - self._consumed), nbytes)
            if room <= 0:
                return False
            if region is None:
                copy_bytes(self._ring.address + start, address, room)
            elif not copy_out(region, address, self._ring.address + start, room):
                return None
            self._out += Frame(Kind.DATA, nbytes=room, arena=self._ring.number, position=start).pack()
            self._produced += room
            self._advance(room)
        return True

    def consumed(self, position: int) -> None:
        self._consumed = min(position, self._produced)

    def _announce(self, memory: SharedMemory) -> None:
        if memory.number not in self._announced:
            self._announced[memory.number] = memory
            self._out += Frame(Kind.MEMORY, arena=memory.number, position=len(memory)).pack()
            self._descriptors.append(memory.fd)

    def _write(self) -> int:
        """Descriptors may reach the peer before the frames that name them, in the same order, but never after."""
        if not self._descriptors:
            return self._socket.send(self._out)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, self._descriptors)]
        count = self._socket.sendmsg([self._out], rights)
        self._descriptors = array.array("i")
        return count
