"""The stream of a remote device.

Belongs here: `Stream` in terms of queued work. Must not be here: its order (`queue`) or its parts (`transfers`,
`runs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from rpc_backend.client.buffer import RemoteBuffer
from rpc_backend.client.copies import CopyToWork, CopyWork, ReadyWork, Way, land_works
from rpc_backend.client.events import MarkWork, RemoteEvent, WaitWork
from rpc_backend.client.landings import Landing
from rpc_backend.client.placement import buffer_on, encode_placed
from rpc_backend.client.plan import RemotePlan
from rpc_backend.client.queue import enqueue_together
from rpc_backend.client.runs import GraphWork, OnwardWork, TaskWork
from rpc_backend.client.single_runs import single_works
from rpc_backend.client.task import RemoteTask
from rpc_backend.client.transfers import Transfers, check_range
from rpc_backend.client.uploads import Load
from rpc_backend.client.work import Later
from rpc_backend.errors import ChannelError, GraphError, RpcBackendError
from rpc_backend.graph import Tensor
from rpc_backend.interfaces import BufferUsage, Event, Plan, Stream, Task, TaskRun
from rpc_backend.protocol.commands import COPY_TENSOR, COPY_TENSOR_TO, EVENT_RECORD, EVENT_WAIT
from rpc_backend.protocol.records import CopyTensorTo, TensorPair

if TYPE_CHECKING:
    from rpc_backend.client.device import RemoteDevice


class RemoteStream(Stream):
    """All streams of one remote device share the worker's one stream of that device."""

    def __init__(self, device: RemoteDevice, transfers: Transfers) -> None:
        self.device = self._remote = device
        self._transfers = transfers
        self._queue = transfers.queue
        self._dispatcher = transfers.queue.dispatcher
        self._callbacks: list[Callable[[RpcBackendError], None]] = []
        self._closed = False

    # Bytes

    def set_tensor(self, tensor: Tensor, data: memoryview, offset_bytes: int = 0) -> None:
        check_range(data.nbytes, offset_bytes, tensor.nbytes, str(tensor))
        self._transfers.uploads.write(encode_placed(self.device, tensor), data, offset_bytes)

    def load_tensors(self, pairs: Iterable[tuple[Tensor, memoryview]], on_done: Callable[[int], None]) -> None:
        self._transfers.uploads.load((self._load(tensor, data) for tensor, data in pairs), on_done)

    def get_tensor(self, tensor: Tensor, out: memoryview, offset_bytes: int = 0) -> None:
        check_range(out.nbytes, offset_bytes, tensor.nbytes, str(tensor))
        self._transfers.download(encode_placed(self.device, tensor), out, offset_bytes)

    def get_tensor_async(self, tensor: Tensor, out: memoryview, offset_bytes: int = 0) -> None:
        check_range(out.nbytes, offset_bytes, tensor.nbytes, str(tensor))
        self._transfers.download_later(encode_placed(self.device, tensor), out, offset_bytes)

    def fetch_tensor(self, tensor: Tensor) -> Future[memoryview]:
        return self._transfers.fetch(encode_placed(self.device, tensor), tensor.nbytes)

    def set_tensor_when(self, tensor: Tensor, data: Future[memoryview]) -> None:
        self._queue.enqueue(*self._transfers.writes(encode_placed(self.device, tensor), tensor.nbytes, data))

    def _load(self, tensor: Tensor, data: memoryview) -> Load:
        if data.nbytes != tensor.nbytes:
            raise GraphError(f"{tensor} of {tensor.nbytes} bytes cannot be loaded from {data.nbytes}")
        buffer, _ = buffer_on(self.device, tensor)
        return Load(encode_placed(self.device, tensor), data, buffer.usage is BufferUsage.WEIGHTS)

    # Copies

    def copy_tensor(self, source: Tensor, target: Tensor) -> bool:
        """Copy within the worker or from another one; False = there is no way between the two, or another layout."""
        buffer, _ = source.location()
        if not isinstance(buffer, RemoteBuffer) or not _same_layout(source, target):
            return False
        ours, theirs = self._queue, buffer.transfers.queue
        pair = TensorPair(encode_placed(buffer.device, source), encode_placed(self.device, target))
        if ours.dispatcher is not theirs.dispatcher:
            holder = buffer.device
            if not isinstance(holder, type(self._remote)) or not holder.peers.open(ours.dispatcher):
                return False
            ours.synchronize()
            way = ours.dispatcher.name, self._remote.index
            return theirs.call(COPY_TENSOR_TO, CopyTensorTo(pair.source, pair.target, source.nbytes, *way)).reply.result
        if ours is not theirs:
            theirs.synchronize()
        return ours.call(COPY_TENSOR, pair).reply.result

    def copy_tensor_async(self, source_stream: Stream, source: Tensor, target_stream: Stream, target: Tensor) -> bool:
        """Copy within the worker, or between it and a device of this process or another worker.

        False = also if it is not known that the source's worker can send to the target's: ask `can_send_to` before.
        """
        if self._dispatcher.settings.no_async_copy or not _same_layout(source, target):
            return False
        if isinstance(source_stream, RemoteStream) and isinstance(target_stream, RemoteStream):
            return target_stream._copy_from(source_stream, source, target)
        if self not in (source_stream, target_stream):
            return False
        target_stream.set_tensor_when(target, source_stream.fetch_tensor(source))
        return True

    # Runs

    def compute(self, plan: Plan) -> None:
        if not isinstance(plan, RemotePlan) or plan.device is not self.device:
            raise GraphError(f"the plan was not compiled by {self.device.info.name}")
        self._queue.enqueue(GraphWork(plan))

    def submit(self, task: Task, run: TaskRun) -> Future[list[memoryview]]:
        """As `Stream.submit`; the future of a task without reads but with results sent onward is done when it is sent.

        What happens to such a run later is known where its results go; `on_failure` tells the rest.

        Raises:
            GraphError: another device's task, or values and tickets that do not fit it.
        """
        if not isinstance(task, RemoteTask) or task.plan.device is not self.device:
            raise GraphError(f"the task was not prepared by {self.device.info.name}")
        task.check(run)
        if self._dispatcher.settings.no_async_copy:
            return super().submit(task, run)
        if task.content is not None:
            kind = OnwardWork if task.onward and not task.reads else TaskWork
            work = kind(task, task.content, run)
            self._queue.enqueue(work)
            return work.future
        works, future = single_works(self._remote, self._transfers, task, run)
        self._queue.enqueue(*works)
        return future

    # Order

    def record(self, event: Event) -> None:
        number = None
        if isinstance(event, RemoteEvent):
            is_known = event.dispatcher is self._dispatcher and self._dispatcher.minor >= EVENT_RECORD.since
            number = event.number() if is_known else None
        mark = MarkWork(number)
        if isinstance(event, RemoteEvent):
            event.announced = mark.announced
            event.on = None if number is None else self._queue
        event.mark(mark.passed)
        self._queue.enqueue(mark)

    def wait(self, event: Event) -> None:
        on = event.on if isinstance(event, RemoteEvent) else None
        if isinstance(event, RemoteEvent) and on is not None and on.dispatcher is self._dispatcher:
            if on is not self._queue:
                self._queue.enqueue(WaitWork(event.number(), event.announced))
        else:
            self._queue.enqueue(Later(event.passed))

    def on_failure(self, callback: Callable[[RpcBackendError], None]) -> None:
        self._callbacks.append(callback)
        self._queue.on_failure.append(callback)
        if self._dispatcher.is_lost:
            callback(self._dispatcher.lost_error())

    def synchronize(self) -> None:
        self._queue.synchronize()

    def close(self) -> None:
        """Wait for what is queued; an error of it stays with the device."""
        if self._closed:
            return
        self._closed = True
        for callback in self._callbacks:
            self._queue.on_failure.remove(callback)
        with suppress(ChannelError):
            self._queue.settle()

    def _copy_from(self, source_stream: RemoteStream, source: Tensor, target: Tensor) -> bool:
        ours, theirs = self._queue, source_stream._queue
        pair = TensorPair(encode_placed(source_stream.device, source), encode_placed(self.device, target))
        if ours.dispatcher is not theirs.dispatcher:
            way = Way(source_stream._remote.peers, ours.dispatcher, self._remote.index)
            if not way.is_open:
                return False
            landing = Landing()
            limits = source_stream._transfers.read_limits
            lands = land_works(self._transfers, pair.target, source.nbytes, landing)
            sends = [CopyToWork(pair.source, source.nbytes, landing, way, limits)]
            enqueue_together([(ours, [ReadyWork([landing], [pair.target]), *lands]), (theirs, sends)])
            return True
        work = CopyWork(pair, self.device)
        if ours is theirs:
            ours.enqueue(work)
            return True
        if self._dispatcher.minor < EVENT_WAIT.since:
            return False
        computed, copied = self.device.create_event(), self.device.create_event()
        source_stream.record(computed)
        self.wait(computed)
        ours.enqueue(work)
        self.record(copied)
        source_stream.wait(copied)  # before the source's memory is used again
        computed.close()
        copied.close()
        return True


def _same_layout(source: Tensor, target: Tensor) -> bool:
    return (source.type, source.ne, source.nb) == (target.type, target.ne, target.nb)
