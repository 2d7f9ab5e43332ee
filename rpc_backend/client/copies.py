"""Copies between tensors of workers, as work in queues.

Belongs here: copies within a worker, and both sides of one between two. Must not be here: order (`queue`), who can
send to whom (`peers`).

Between two workers the target's queue says when its memory is free (`ReadyWork`), the source's then has its worker send
(`CopyToWork`), and the target's goes on when that is done (`LandWork`). If the source's worker declines, the bytes come
to this process and `LandWork` sends them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rpc_backend.client.dispatcher import Answer, Dispatcher, Pending
from rpc_backend.client.landings import Landing
from rpc_backend.client.peers import Peers
from rpc_backend.client.reads import Reading, ReadLimits, pieces_of
from rpc_backend.client.transfers import Transfers, WriteWork
from rpc_backend.client.uploads import UPLOAD_CHUNK_NBYTES
from rpc_backend.client.work import Fence, Wire, Work
from rpc_backend.errors import DeviceError
from rpc_backend.interfaces import Device
from rpc_backend.protocol.commands import COPY_TENSOR, COPY_TENSOR_TO, SYNCHRONIZE
from rpc_backend.protocol.records import CopyTensorTo, Empty, Record, TensorPair

_ANSWERED: Pending[Any] = Pending(0, SYNCHRONIZE, Future())
_ANSWERED.future.set_result(Answer(Empty(), memoryview(b"")))


class CopyWork(Work):
    """A copy within the worker."""

    def __init__(self, pair: TensorPair, device: Device) -> None:
        super().__init__()
        self._pair = pair
        self._device = device

    def send(self, wire: Wire) -> Sequence[Pending[Any]]:
        return (wire.submit(COPY_TENSOR, self._pair),)

    def take_answers(self) -> None:
        if not self.answers[0].future.result().reply.result:
            name = self._device.info.name
            raise DeviceError(f"{name} declined to copy; ZMQ_RPC_NO_ASYNC_COPY=1 takes the way through the host")


class ReadyWork(Fence):
    """All before it on the target's stream is done: landings there may be written."""

    def __init__(self, landings: Sequence[Landing], targets: Sequence[Record]) -> None:
        super().__init__()
        self._landings = landings
        self._targets = targets

    def send(self, wire: Wire) -> Sequence[Pending[Any]]:
        """Send nothing if all is answered: what another worker then sends comes behind it in the device's own order."""
        return (_ANSWERED,) if wire.is_idle else super().send(wire)

    def take_answers(self) -> None:
        if self.answers[0] is not _ANSWERED:
            super().take_answers()

    def settle(self) -> None:
        super().settle()
        for landing, target in zip(self._landings, self._targets, strict=True):
            if self.error is None:
                landing.clear(target)
            else:
                landing.give_up(self.error)


class LandWork(WriteWork):
    """A part of the target's tensor: written by the other worker already, or now."""

    def send(self, wire: Wire) -> Sequence[Pending[None]]:
        if self._data.result() is None:
            self.nbytes = 0
            return ()
        return super().send(wire)


@dataclass(frozen=True, slots=True)
class Way:
    """From one worker to device `device` of another, or through this process."""

    peers: Peers
    target: Dispatcher
    device: int

    @property
    def is_open(self) -> bool:
        return self.peers.is_open(self.target)

    @property
    def is_stuck(self) -> bool:
        """Whether the target's queue waits for another one."""
        return self.target.is_stuck(self.device)


class CopyToWork(Work):
    """A tensor for another worker. Its stream is held until the bytes are there, as they may be needed once more.

    Errors of the work before go to the landing, where the target's stream meets them. `done` ends with the copy.

    It waits for the target's queue, which may wait for this one if two callers queue runs crosswise. If both make no
    way for some time, the bytes come to this process, which needs no readiness of the target.
    """

    takes_error = True

    def __init__(self, source: Record, nbytes: int, landing: Landing, way: Way, limits: ReadLimits) -> None:
        super().__init__()
        self.gate = landing.ready
        self.done: Future[None] = Future()
        self._source = source
        self._nbytes = nbytes
        self._landing = landing
        self._way = way
        self._limits = limits
        self._is_direct = False
        self._data: memoryview | None = None
        self._reading: Reading | None = None

    def send(self, wire: Wire) -> Sequence[Pending[Any]]:
        target = None if self.gate is None else self.gate.result()  # raises where it was given up
        self._is_direct = target is not None and self._way.is_open
        if target is not None and self._is_direct:
            request = CopyTensorTo(self._source, target, self._nbytes, self._way.target.name, self._way.device)
            return (wire.submit(COPY_TENSOR_TO, request),)
        self._data = memoryview(bytearray(self._nbytes))
        pieces = list(pieces_of(self._source, self._data, 0, self._limits.max_nbytes))
        self._reading = Reading(pieces, self._limits)
        return self._reading.send(wire)

    def goes_round(self) -> bool:
        if self._way.is_stuck:
            self.gate = None
        return self.gate is None

    @property
    def is_question(self) -> bool:
        return self._is_direct and not self.is_answered

    @property
    def is_refused(self) -> bool:
        if not self._is_direct or self.is_question:
            return False
        future = self.answers[0].future
        return future.exception() is None and not future.result().reply.result

    def send_again(self) -> None:
        super().send_again()
        self._way.peers.give_up(self._way.target, "the first could not bring a tensor there; see its log")

    def take_answers(self) -> None:
        if self._reading is not None:
            self._reading.fill()
        else:
            super().take_answers()

    def settle(self) -> None:
        if self.error is None:
            self._landing.land(self._data)
            self.done.set_result(None)
        else:
            self._landing.give_up(self.error)
            self.done.set_exception(self.error)


def land_works(transfers: Transfers, target: Record, nbytes: int, landing: Landing) -> Iterator[LandWork]:
    """Yield the work that has a landing done on the target's stream."""
    step = min(UPLOAD_CHUNK_NBYTES, transfers.max_payload_nbytes)
    for start in range(0, max(1, nbytes), step):
        yield LandWork(target, landing.landed, nbytes, start, min(start + step, nbytes))  # type: ignore[arg-type]
