"""The stream of a remote device.

Belongs here: `Stream` in terms of queued work. Must not be here: its order (`queue`) or its parts (`transfers`,
`runs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from rpc_backend.client.buffer import RemoteBuffer
from rpc_backend.client.dispatcher import Pending
from rpc_backend.client.events import MarkWork, RemoteEvent, WaitWork
from rpc_backend.client.placement import encode_placed
from rpc_backend.client.plan import RemotePlan
from rpc_backend.client.runs import GraphTaskWork, GraphWork, OnwardWork, TaskWork
from rpc_backend.client.task import RemoteTask
from rpc_backend.client.transfers import Transfers, WriteWork, check_range
from rpc_backend.client.work import Later, Wire, Work
from rpc_backend.errors import ChannelError, DeviceError, GraphError, RpcBackendError
from rpc_backend.graph import Tensor
from rpc_backend.interfaces import Device, Event, Plan, Stream, Task, TaskRun
from rpc_backend.protocol.commands import COPY_TENSOR, EVENT_RECORD, EVENT_WAIT
from rpc_backend.protocol.records import TensorPair


class RemoteStream(Stream):
    """All streams of one remote device share the worker's one stream of that device."""

    def __init__(self, device: Device, transfers: Transfers) -> None:
        self.device = device
        self._transfers = transfers
        self._queue = transfers.queue
        self._dispatcher = transfers.queue.dispatcher
        self._callbacks: list[Callable[[RpcBackendError], None]] = []
        self._closed = False

    # Bytes

    def set_tensor(self, tensor: Tensor, data: memoryview, offset_bytes: int = 0) -> None:
        check_range(data.nbytes, offset_bytes, tensor.nbytes, str(tensor))
        self._transfers.upload(encode_placed(self.device, tensor), data, offset_bytes)

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

    # Copies

    def copy_tensor(self, source: Tensor, target: Tensor) -> bool:
        """Copy within the worker, also from another device of it; False = another worker, or another layout."""
        buffer, _ = source.location()
        if not isinstance(buffer, RemoteBuffer) or not _same_layout(source, target):
            return False
        ours, theirs = self._queue, buffer.transfers.queue
        if ours.dispatcher is not theirs.dispatcher:
            return False
        if ours is not theirs:
            theirs.synchronize()
        pair = TensorPair(encode_placed(buffer.device, source), encode_placed(self.device, target))
        return ours.call(COPY_TENSOR, pair).reply.result

    def copy_tensor_async(self, source_stream: Stream, source: Tensor, target_stream: Stream, target: Tensor) -> bool:
        """Copy within the worker, or between it and a device of this process; False = between two workers."""
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
        single = GraphTaskWork(task, self._transfers.read_limits)
        self._queue.enqueue(*self._single_writes(task, run), single)
        return single.future

    def _single_writes(self, task: RemoteTask, run: TaskRun) -> list[WriteWork]:
        works: list[WriteWork] = []
        for record, value in zip(task.write_records, run.values, strict=True):
            data: Future[memoryview] = Future()
            data.set_result(value)
            works += self._transfers.writes(record, value.nbytes, data)
        return works

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
        if ours.dispatcher is not theirs.dispatcher:
            return False
        work = CopyWork(
            TensorPair(encode_placed(source_stream.device, source), encode_placed(self.device, target)), self.device
        )
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


def _same_layout(source: Tensor, target: Tensor) -> bool:
    return (source.type, source.ne, source.nb) == (target.type, target.ne, target.nb)
