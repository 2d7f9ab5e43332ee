"""Tensor bytes on their way to a worker.

Belongs here: chunks, batches of them, digests that may save the way. Must not be here: order and windows (`queue`),
places of tensors (`placement`).

The caller's memory goes out as it is, in chunks. A few chunks are under way; a batch more waits in the queue, so that
the thread that brings answers sends the next chunk without waking the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass

import xxhash

from rpc_backend.client.dispatcher import Pending
from rpc_backend.client.queue import CommandQueue
from rpc_backend.client.work import Asked, Wire, Work
from rpc_backend.errors import WorkerLostError
from rpc_backend.interfaces import Ticket
from rpc_backend.load_profile import DIGEST, STAGING, LoadProfile
from rpc_backend.protocol.commands import SET_TENSOR, SET_TENSOR_HASH
from rpc_backend.protocol.records import Record, Result, TensorHash, TensorRange

UPLOAD_CHUNK_NBYTES = 2 << 20
HEADER_NBYTES = 512  # about what a chunk takes beside its bytes
_BATCH_NBYTES = 16 << 20
_DIGEST_PIECE_NBYTES = 4 << 20
_ASKED_AHEAD = 16
_LEAST_ASKED_NBYTES = 4 << 10
_LEAST_ASKED_UNOPTIMIZED_NBYTES = 10 << 20

OnDone = Callable[[int], None]
"""Called with the bytes of a tensor, or of a part of it, that need no more care."""


class ChunkWork(Work):
    """A chunk of a tensor whose bytes are there. `ticket` says when they may change, once it is sent.

    `sent` is done when the last chunk of a batch is on its way, or will not go.
    """

    is_bulk = True
    keeps_error = False

    def __init__(self, record: Record, offset: int, data: memoryview, profile: LoadProfile | None) -> None:
        super().__init__()
        self.nbytes = data.nbytes
        self.ticket: Ticket | None = None
        self.sent: Future[None] | None = None
        self._record = record
        self._offset = offset
        self._data = data
        self._profile = profile

    def ask_when_sent(self) -> Future[None]:
        """Return a future that is done when it is on its way, or will not go. Before it is queued."""
        self.tells_when_sent = True
        self.sent = Future()
        return self.sent

    def send(self, wire: Wire) -> Sequence[Pending[None]]:
        if self._profile is not None:
            self._profile.began(self.nbytes)
        _, self.ticket = wire.post(SET_TENSOR, TensorRange(self._record, self._offset, self.nbytes), self._data)
        return ()

    def was_sent(self) -> None:
        if self.sent is not None:
            self.sent.set_result(None)

    def settle(self) -> None:
        if self._profile is not None and not self.was_skipped:
            self._profile.ended()
        if self.error is not None:  # it was not sent
            self.was_sent()


@dataclass(frozen=True, slots=True)
class Load:
    """A whole tensor to be loaded; `is_weight`: a worker may keep its content."""

    record: Record
    data: memoryview
    is_weight: bool


@dataclass(frozen=True, slots=True)
class UploadOptions:
    """How bytes go out.

    `chunk_nbytes` is the most in one message. `has_content`: the worker may hold content already, so it is asked by
    digest. With `is_optimized` False every chunk is copied beside room for its header, and large tensors are digested
    and asked for whatever the worker is, one after another: the way before these were found to be slow.
    """

    chunk_nbytes: int
    has_content: bool = False
    is_optimized: bool = True

    def asks_for(self, load: Load) -> bool:
        """Whether the worker is asked for a tensor's content."""
        if not self.is_optimized:
            return load.data.nbytes >= _LEAST_ASKED_UNOPTIMIZED_NBYTES
        return self.has_content and load.is_weight and load.data.nbytes >= _LEAST_ASKED_NBYTES


class Uploads:
    """The way of bytes to one device."""

    def __init__(self, queue: CommandQueue, options: UploadOptions) -> None:
        self._queue = queue
        self._options = options
        self._profile = queue.dispatcher.profile

    def write(self, record: Record, data: memoryview, offset: int) -> None:
        """Write `data` over a tensor from `offset` on; `data` may be reused on return.

        Raises:
            WorkerLostError: the worker is gone. An error of earlier work is left to the next synchronising call.
        """
        if data.nbytes:
            self._send(self._chunks(record, data, offset))

    def load(self, loads: Iterable[Load], on_done: OnDone) -> None:
        """Write whole tensors, or let the worker take them from what it holds; their bytes may be reused on return.

        Raises:
            WorkerLostError: the worker is gone.
            RpcBackendError: an error of this or earlier work, if the worker was asked; else it is left to the next
                synchronising call.
        """
        with closing(self._missing(loads, on_done)) as missing:
            self._send((chunk for load in missing for chunk in self._chunks(load.record, load.data, 0)), on_done)

    # Chunks

    def _chunks(self, record: Record, data: memoryview, offset: int) -> Iterator[ChunkWork]:
        view = data.cast("B")
        for start in range(0, view.nbytes, self._options.chunk_nbytes):
            chunk = view[start : start + self._options.chunk_nbytes]
            chunk = chunk if self._options.is_optimized else self._staged(chunk)
            yield ChunkWork(record, offset + start, chunk, self._profile)

    def _staged(self, chunk: memoryview) -> memoryview:
        with self._timing(STAGING):
            message = memoryview(bytearray(HEADER_NBYTES + chunk.nbytes))
            message[HEADER_NBYTES:] = chunk
        return message[HEADER_NBYTES:]

    def _send(self, chunks: Iterable[ChunkWork], on_done: OnDone | None = None) -> None:
        """Queue chunks, a batch before the last one is out; return when all bytes have left."""
        batches: deque[list[ChunkWork]] = deque()
        tickets: deque[Ticket] = deque()
        try:
            for batch in _batches(chunks):
                batch[-1].ask_when_sent()
                batches.append(batch)
                self._queue.enqueue(*batch)
                if len(batches) > 1:
                    tickets.extend(self._finish(batches.popleft(), on_done))
                while tickets and tickets[0].done:
                    tickets.popleft()
            while batches:
                tickets.extend(self._finish(batches.popleft(), on_done))
        except BaseException:
            self._queue.withdraw(chunk for batch in batches for chunk in batch)
            raise
        for ticket in reversed(tickets):  # when the last is done, so are the others: one wait instead of many
            self._queue.dispatcher.wait_sent(ticket)

    def _finish(self, batch: list[ChunkWork], on_done: OnDone | None) -> list[Ticket]:
        """Wait until a batch is on its way and return its tickets, or raise why it could not be sent."""
        last = batch[-1]
        assert last.sent is not None, "it was asked for when it was queued"
        try:
            self._queue.dispatcher.wait_future(last.sent, SET_TENSOR.name)
        except BaseException:
            self._queue.withdraw(batch)
            raise
        for chunk in batch:
            if chunk.error is not None and (not chunk.was_skipped or isinstance(chunk.error, WorkerLostError)):
                raise chunk.error
            if on_done is not None:
                on_done(chunk.nbytes)
        return [chunk.ticket for chunk in batch if chunk.ticket is not None]

    # Digests

    def _missing(self, loads: Iterable[Load], on_done: OnDone) -> Generator[Load, None, None]:
        """Yield what the worker does not hold; the others are in place. Digests and questions run ahead."""
        n_ahead = _ASKED_AHEAD if self._options.is_optimized and self._options.has_content else 0
        ahead: deque[tuple[Load, Future[Asked[Result]] | None]] = deque()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="digest") as pool:
            try:
                for load in loads:
                    is_asked = self._options.asks_for(load)
                    ahead.append((load, pool.submit(self._ask, load) if is_asked else None))
                    if len(ahead) > n_ahead:
                        yield from self._unless_held(*ahead.popleft(), on_done)
                while ahead:
                    yield from self._unless_held(*ahead.popleft(), on_done)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, load: Load) -> Asked[Result]:
        with self._timing(DIGEST):
            digest = digest_of(load.data)
        asked = Asked(SET_TENSOR_HASH, TensorHash(load.record, 0, load.data.nbytes, digest))
        self._queue.enqueue(asked)
        return asked

    def _unless_held(self, load: Load, asking: Future[Asked[Result]] | None, on_done: OnDone) -> Iterator[Load]:
        if asking is not None:
            asked = asking.result()
            self._queue.dispatcher.wait_future(asked.done, SET_TENSOR_HASH.name)
            if asked.answer().reply.result:
                on_done(load.data.nbytes)
                return
        yield load

    def _timing(self, part: str) -> AbstractContextManager[None]:
        return nullcontext() if self._profile is None else self._profile.timing(part)


def digest_of(data: memoryview) -> bytes:
    """Return the xxh3-128 digest of bytes, in pieces: other threads run meanwhile."""
    digest, view = xxhash.xxh3_128(), data.cast("B")
    for start in range(0, view.nbytes, _DIGEST_PIECE_NBYTES):
        digest.update(view[start : start + _DIGEST_PIECE_NBYTES])
    return digest.digest()


def _batches(chunks: Iterable[ChunkWork]) -> Iterator[list[ChunkWork]]:
    """Group chunks so that each group but the last has at least `_BATCH_NBYTES` bytes."""
    batch: list[ChunkWork] = []
    nbytes = 0
    for chunk in chunks:
        batch.append(chunk)
        nbytes += chunk.nbytes
        if nbytes >= _BATCH_NBYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch
