"""Tensor bytes from a worker, in parts, and to it once they come.

Belongs here: chunks and the use of the caller's memory. Must not be here: bytes that are there (`uploads`), order and
windows (`queue`), places of tensors (`placement`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from rpc_backend.client.dispatcher import Pending
from rpc_backend.client.queue import CommandQueue
from rpc_backend.client.reads import ReadFuture, ReadLimits, pieces_of
from rpc_backend.client.uploads import HEADER_NBYTES, UPLOAD_CHUNK_NBYTES, Uploads
from rpc_backend.client.work import Wire, Work
from rpc_backend.errors import ErrorContext, GraphError, RemoteProtocolError
from rpc_backend.protocol.commands import GET_TENSOR, SET_TENSOR
from rpc_backend.protocol.records import Record, TensorRange

DOWNLOAD_CHUNK_NBYTES = 4 << 20


class WriteWork(Work):
    """A chunk of a tensor, written when all of its bytes are there."""

    def __init__(self, record: Record, data: Future[memoryview], total_nbytes: int, start: int, stop: int) -> None:
        super().__init__()
        self.gate = data
        self.nbytes = stop - start + HEADER_NBYTES
        self._record = record
        self._data = data
        self._total_nbytes = total_nbytes
        self._start = start
        self._stop = stop

    def send(self, wire: Wire) -> Sequence[Pending[None]]:
        data = self._data.result()
        if data.nbytes != self._total_nbytes:
            raise GraphError(f"a tensor of {self._total_nbytes} bytes cannot be written with {data.nbytes}")
        chunk = data.cast("B")[self._start : self._stop]
        wire.post(SET_TENSOR, TensorRange(self._record, self._start, chunk.nbytes), chunk)
        return ()


@dataclass(frozen=True, slots=True)
class Transfers:
    """The way of tensor bytes through one queue; `max_payload_nbytes` is the worker's limit."""

    queue: CommandQueue
    uploads: Uploads
    max_payload_nbytes: int
    read_limits: ReadLimits

    def download(self, record: Record, out: memoryview, offset: int) -> None:
        """Fill `out` with a tensor's bytes from `offset` on.

        Raises:
            RpcBackendError: also an error of anything queued before.
        """
        if out.nbytes == 0:
            self.queue.synchronize()
            return
        view = out.cast("B")
        step = min(DOWNLOAD_CHUNK_NBYTES, self.max_payload_nbytes)
        for start in range(0, view.nbytes, step):
            part = view[start : start + step]
            payload = self.queue.call(GET_TENSOR, TensorRange(record, offset + start, part.nbytes)).payload
            if payload.nbytes != part.nbytes:
                raise RemoteProtocolError(
                    f"{part.nbytes} bytes were asked for and {payload.nbytes} came",
                    context=ErrorContext(worker=self.queue.dispatcher.name, command=GET_TENSOR.name),
                )
            part[:] = payload

    def download_later(self, record: Record, out: memoryview, offset: int) -> None:
        """As `download`, but `out` is filled at the next synchronising call."""
        self.queue.read(pieces_of(record, out, offset, self.read_limits.max_nbytes))

    def fetch(self, record: Record, nbytes: int) -> Future[memoryview]:
        """Read a tensor into new memory."""
        out = memoryview(bytearray(nbytes))
        future: Future[memoryview] = Future()
        future.set_running_or_notify_cancel()
        self.queue.read(pieces_of(record, out, 0, self.read_limits.max_nbytes), ReadFuture(future, out))
        self.queue.enqueue()
        return future

    def writes(self, record: Record, nbytes: int, data: Future[memoryview]) -> Iterator[WriteWork]:
        """Yield the work that writes a whole tensor of `nbytes` bytes when `data` comes."""
        step = min(UPLOAD_CHUNK_NBYTES, self.max_payload_nbytes)
        for start in range(0, nbytes, step):
            yield WriteWork(record, data, nbytes, start, min(start + step, nbytes))


def check_range(nbytes: int, offset: int, limit: int, what: str) -> None:
    """Check that `nbytes` at `offset` lie within `limit` bytes of `what`.

    Raises:
        GraphError: they do not.
    """
    if not 0 <= offset <= offset + nbytes <= limit:
        raise GraphError(f"{nbytes} bytes at {offset} are outside {what} of {limit} bytes")
