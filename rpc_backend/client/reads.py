"""Reads of tensors: what is asked for, in which messages, and where the bytes go.

Belongs here: pieces of tensors, the batch of queued reads. Must not be here: order (`queue`), places of tensors
(`placement`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rpc_backend.client.dispatcher import Answer, Pending
from rpc_backend.client.work import Wire, Work
from rpc_backend.errors import ErrorContext, RemoteProtocolError
from rpc_backend.protocol import Command
from rpc_backend.protocol.commands import GET_TENSOR, GET_TENSORS
from rpc_backend.protocol.records import Record, TensorRange, TensorRanges

MAX_PIECES = 4096
_PIECE_NBYTES = 256  # about what a piece takes in a request


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a placed tensor from `offset` on, and the memory that they go to."""

    record: Record
    offset: int
    out: memoryview


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How a worker is asked: many pieces in one message if `is_batched`, at most `max_nbytes` in one answer."""

    max_nbytes: int
    is_batched: bool


@dataclass(frozen=True, slots=True)
class ReadFuture:
    """A read whose future gives the memory that it filled."""

    future: Future[memoryview]
    out: memoryview


def pieces_of(record: Record, out: memoryview, offset: int, max_nbytes: int) -> Iterator[Piece]:
    """Cut a read of `out.nbytes` bytes; a read of nothing is one piece."""
    view = out.cast("B") if out.nbytes else memoryview(bytearray())
    for start in range(0, max(1, view.nbytes), max_nbytes):
        yield Piece(record, offset + start, view[start : start + max_nbytes])


class Reading:
    """Pieces as messages, and their answers back into memory."""

    def __init__(self, pieces: Sequence[Piece], limits: ReadLimits) -> None:
        self._pieces = pieces
        self._limits = limits
        self._sent: list[tuple[Pending[Any], Sequence[Piece]]] = []

    @property
    def nbytes(self) -> int:
        """About what the requests take."""
        return _PIECE_NBYTES * len(self._pieces)

    def send(self, wire: Wire) -> list[Pending[Any]]:
        """Send the requests and return what will be answered."""
        if self._limits.is_batched:
            self._sent = [(wire.submit(GET_TENSORS, _ranges(batch)), batch) for batch in self._batches()]
        else:
            self._sent = [(wire.submit(GET_TENSOR, _range(piece)), [piece]) for piece in self._pieces]
        return [pending for pending, _ in self._sent]

    def fill(self) -> None:
        """Put the answers where they belong.

        Raises:
            RpcBackendError: the first error among them.
            RemoteProtocolError: one is of another size.
        """
        sent, self._sent = self._sent, []
        for pending, pieces in sent:
            _scatter(pending.future.result(), pieces, pending.command)

    def _batches(self) -> Iterator[list[Piece]]:
        batch: list[Piece] = []
        nbytes = 0
        for piece in self._pieces:
            if batch and (nbytes + piece.out.nbytes > self._limits.max_nbytes or len(batch) == MAX_PIECES):
                yield batch
                batch, nbytes = [], 0
            batch.append(piece)
            nbytes += piece.out.nbytes
        if batch:
            yield batch


class Reads(Work):
    """Reads that go out together.

    An error is raised by the next synchronising call, unless only futures wait for it.
    """

    def __init__(self, limits: ReadLimits) -> None:
        super().__init__()
        self.keeps_error = False
        self._pieces: list[Piece] = []
        self._futures: list[ReadFuture] = []
        self._reading = Reading(self._pieces, limits)

    def add(self, pieces: Iterable[Piece], future: ReadFuture | None) -> None:
        """Add a read."""
        self._pieces.extend(pieces)
        self.nbytes = self._reading.nbytes
        if future is None:
            self.keeps_error = True
        else:
            self._futures.append(future)

    def send(self, wire: Wire) -> Sequence[Pending[Any]]:
        return self._reading.send(wire)

    def take_answers(self) -> None:
        self._reading.fill()

    def settle(self) -> None:
        for read in self._futures:
            if self.error is None:
                read.future.set_result(read.out)
            else:
                read.future.set_exception(self.error)


def _range(piece: Piece) -> TensorRange:
    return TensorRange(piece.record, piece.offset, piece.out.nbytes)


def _ranges(pieces: Sequence[Piece]) -> TensorRanges:
    return TensorRanges([[piece.record, piece.offset, piece.out.nbytes] for piece in pieces])


def _scatter(answer: Answer[Any], pieces: Sequence[Piece], command: Command[Any, Any]) -> None:
    payload, start = answer.payload, 0
    expected = sum(piece.out.nbytes for piece in pieces)
    if payload.nbytes != expected:
        text = f"{expected} bytes were asked for and {payload.nbytes} came"
        raise RemoteProtocolError(text, context=ErrorContext(command=command.name))
    for piece in pieces:
        piece.out[:] = payload[start : start + piece.out.nbytes]
        start += piece.out.nbytes
