"""Devices for the tests of this folder: the reference backend, watched, and in the manner of workers."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import pytest

from rpc_backend.errors import ComputeError, OutOfMemoryError, RpcBackendError, WorkerLostError
from rpc_backend.graph import Graph, Tensor, build, check_graph, element_type
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import (
    Buffer,
    BufferUsage,
    Device,
    HostBuffer,
    Memory,
    RunnablePlan,
    SerialStream,
    Task,
    TaskRun,
)
from rpc_backend.registry import load_registry

REFERENCE = load_registry().create_devices("reference", DeviceOptions())[0]


class IsolatedBuffer(HostBuffer):
    """Memory that no other buffer can be copied from or to directly."""

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        return False


class CheckedDevice(Device):
    """The reference backend under another name; it refuses graphs that mention memory of another device.

    Fresh memory is filled with 0xFF, which is NaN in every float type.
    """

    def __init__(self, name: str, *, isolated: bool = False, limit_nbytes: int = 2**40, lacks: str = "") -> None:
        self.info = replace(REFERENCE.info, name=name)
        self.limit_nbytes, self.lacks = limit_nbytes, lacks
        self.kind = IsolatedBuffer if isolated else HostBuffer
        self.buffers: list[HostBuffer] = []
        self.graphs: list[Graph] = []
        self.n_streams = self.n_open_plans = 0
        self.fail: ComputeError | None = None
        self.n_runs = 0
        self.before_run: Callable[[int], None] = lambda number: None

    def memory(self) -> Memory:
        return Memory(self.limit_nbytes, self.limit_nbytes)

    def alloc_buffer(self, nbytes: int, usage: BufferUsage = BufferUsage.ANY) -> HostBuffer:
        if nbytes > self.limit_nbytes:
            raise OutOfMemoryError(f"asked for {nbytes}, free {self.limit_nbytes}")
        buffer = self.kind(self, nbytes, usage)
        buffer.fill(0, nbytes, 0xFF)
        self.buffers.append(buffer)
        return buffer

    def supports_op(self, tensor: Tensor) -> bool:
        return tensor.op is not None and tensor.op.name != self.lacks and REFERENCE.supports_op(tensor)

    def compile(self, graph: Graph) -> CheckedPlan:
        check_graph(graph)
        for tensor in graph.tensors():
            assert tensor.location()[0].device is self, f"{tensor} lies on another device"
        self.graphs.append(graph)
        self.n_open_plans += 1
        return CheckedPlan(self, graph)

    def create_stream(self) -> SerialStream:
        self.n_streams += 1
        return SerialStream(self)

    def close(self) -> None:
        """Nothing is held."""

    def put(self, name: str, values: npt.NDArray[Any]) -> Tensor:
        """Return an F32 leaf with these values in memory of this device."""
        tensor = build.leaf(element_type("F32"), values.shape[::-1], name)
        buffer = self.alloc_buffer(tensor.nbytes, BufferUsage.WEIGHTS)
        buffer.write(0, values.data)
        tensor.buffer = buffer
        return tensor


class CheckedPlan(RunnablePlan):
    def __init__(self, device: CheckedDevice, graph: Graph) -> None:
        self.device, self.graph = device, graph
        compiled = REFERENCE.compile(graph)
        assert isinstance(compiled, RunnablePlan)
        self._compiled = compiled

    def run(self) -> None:
        self.device.n_runs += 1
        self.device.before_run(self.device.n_runs)
        failure, self.device.fail = self.device.fail, None
        if failure is not None:
            raise failure
        self._compiled.run()

    def close(self) -> None:
        self.device.n_open_plans -= 1


class PeerDevice(CheckedDevice):
    """A device that queues tasks and sends results straight to its like, as workers do; `mail` is shared by all."""

    def __init__(self, name: str, mail: Mail, **options: Any) -> None:
        super().__init__(name, isolated=True, **options)
        self.mail = mail
        self.open_streams: list[PeerStream] = []

    def can_send_to(self, target: Device) -> bool:
        return isinstance(target, PeerDevice)

    def drop_tickets(self, tickets: Sequence[bytes], reason: str) -> None:
        self.mail.drop(tickets, reason)

    @property
    def buries_tickets(self) -> bool:
        return True

    def bury_tickets(self, tickets: Sequence[bytes]) -> None:
        self.mail.buried += tickets

    def create_stream(self) -> PeerStream:  # type: ignore[override]
        self.open_streams.append(PeerStream(self))
        return self.open_streams[-1]


class PeerStream(SerialStream):
    """Runs tasks on a thread. A task with nothing to read is done for the host when it is queued."""

    def __init__(self, device: PeerDevice) -> None:
        super().__init__(device)
        self.peer = device
        self.report: Callable[[RpcBackendError], None] = lambda error: None
        self._thread = ThreadPoolExecutor(1)

    def on_failure(self, callback: Callable[[RpcBackendError], None]) -> None:
        self.report = callback

    def submit(self, task: Task, run: TaskRun) -> Future[list[memoryview]]:
        future = self._thread.submit(self._visit, task, run)
        if task.reads or not task.onward:
            return future
        blind: Future[list[memoryview]] = Future()
        blind.set_result([])
        return blind

    def _visit(self, task: Task, run: TaskRun) -> list[memoryview]:
        try:
            received = [self.peer.mail.take(ticket) for ticket in run.receive_tickets]
            for tensor, value in zip(task.receives, received, strict=True):
                self.set_tensor(tensor, value)
            results = self._run_task(replace(task, receives=(), onward=()), run)
        except RpcBackendError as error:
            self.peer.mail.drop(run.onward_tickets, str(error))
            raise
        for onward, ticket in zip(task.onward, run.onward_tickets, strict=True):
            self.peer.mail.send(ticket, self.fetch_tensor(onward.tensor).result())
        return results

    def close(self) -> None:
        self._thread.shutdown()


class Mail:
    """Tensors under way between devices, by ticket. A ticket that nobody serves fails after `timeout_s`."""

    def __init__(self, timeout_s: float = 20.0) -> None:
        self._boxes: defaultdict[bytes, Future[memoryview]] = defaultdict(Future)
        self._lock = threading.Lock()
        self.timeout_s = timeout_s
        self.n_sent = 0
        self.dropped: list[str] = []
        self.buried: list[bytes] = []

    def send(self, ticket: bytes, data: memoryview) -> None:
        with self._lock:
            if not self._boxes[ticket].done():
                self._boxes[ticket].set_result(data)
                self.n_sent += 1

    def drop(self, tickets: Sequence[bytes], reason: str) -> None:
        with self._lock:
            for ticket in tickets:
                if not self._boxes[ticket].done():
                    self._boxes[ticket].set_exception(WorkerLostError(reason))
                    self.dropped.append(reason)

    def take(self, ticket: bytes) -> memoryview:
        with self._lock:
            box = self._boxes[ticket]
        return box.result(self.timeout_s)


@pytest.fixture(scope="session")
def peers() -> Callable[..., list[PeerDevice]]:
    """Return a function that makes some devices `p0`, `p1`, … that send to each other."""
    return _peers


def _peers(count: int, **options: Any) -> list[PeerDevice]:
    mail = Mail()
    return [PeerDevice(f"p{index}", mail, **options) for index in range(count)]


@pytest.fixture(scope="session")
def checked() -> Callable[..., list[CheckedDevice]]:
    """Return a function that makes some devices `d0`, `d1`, … with the options of `CheckedDevice`."""
    return _checked


def _checked(count: int, **options: Any) -> list[CheckedDevice]:
    return [CheckedDevice(f"d{index}", **options) for index in range(count)]
