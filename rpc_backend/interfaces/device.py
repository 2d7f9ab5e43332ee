"""The nouns of compute: Device, Buffer, Plan, Stream. Local and remote devices implement the same ones.

Belongs here: abstract classes and the small records they speak in. Must not be here: anything that
works for one kind of device only (see `host_memory`, `serial_stream`).

Any thread may call any method, unless a method says otherwise. Errors are those of `errors`; what
comes out of a foreign library is mapped by the implementation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from rpc_backend.errors import GraphError, RpcBackendError
from rpc_backend.graph import Graph, Tensor
from rpc_backend.interfaces.event import Event, passed
from rpc_backend.interfaces.task import Onward, Task, TaskRun


class BufferUsage(StrEnum):
    """What a buffer is for; a device may lay out or place memory by it."""

    ANY = "any"
    WEIGHTS = "weights"
    COMPUTE = "compute"


class Memory(NamedTuple):
    """Memory of a device, in bytes."""

    free_nbytes: int
    total_nbytes: int


DeviceKind = Literal["cpu", "gpu", "accelerator"]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device is. `name` is unique within its worker or process.

    `alignment` and `max_buffer_nbytes` are in bytes. `is_host` says that buffers are memory of this process
    (`HostBuffer`).
    """

    name: str
    description: str
    kind: DeviceKind
    alignment: int = 64
    max_buffer_nbytes: int = 2**62
    is_host: bool = False


class Buffer(ABC):
    """A block of a device's memory. Offsets and sizes are in bytes.

    Every method raises DeviceError if the buffer is closed, and GraphError if a range is outside it.
    """

    device: Device
    nbytes: int
    usage: BufferUsage

    @abstractmethod
    def write(self, offset: int, data: memoryview) -> None:
        """Copy `data` (contiguous bytes) into the buffer.

        A device that cannot take it from where it lies copies through one area of its own, used for every write.
        """

    @abstractmethod
    def read_into(self, offset: int, out: memoryview) -> None:
        """Copy `out.nbytes` bytes from the buffer into `out`."""

    @abstractmethod
    def fill(self, offset: int, nbytes: int, value: int) -> None:
        """Set bytes to `value` (0 to 255)."""

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        """Copy from another buffer without passing the host; False = cannot, use read and write.

        Optional; the default declines.
        """
        return False

    @abstractmethod
    def close(self) -> None:
        """Give the memory back. A second call does nothing."""


class Plan(ABC):
    """A graph compiled for one device: compile once, replay often.

    The graph's tensors must stay where they were when it was compiled.
    """

    graph: Graph

    def close(self) -> None:
        """Give back what the plan holds. A second call does nothing. Optional."""


class RunnablePlan(Plan):
    """A plan that the caller's thread can run: what a compute backend implements."""

    @abstractmethod
    def run(self) -> None:
        """Compute every node, and return when all results are in memory. One caller at a time.

        Raises:
            ComputeError: a node failed; the context names its op. Memory of the graph's results is then
                undefined, everything else unharmed.
        """


class Stream(ABC):
    """An in-order queue of one device. Methods may return before the device is done.

    An error of queued work is raised by the next `get_tensor` or `synchronize`, once; work queued after
    the failure and before that call is not run.
    """

    device: Device

    @abstractmethod
    def set_tensor(self, tensor: Tensor, data: memoryview, offset_bytes: int = 0) -> None:
        """Write bytes over a tensor's memory from `offset_bytes` on; `data` may be reused on return."""

    def load_tensors(self, pairs: Iterable[tuple[Tensor, memoryview]], on_done: Callable[[int], None]) -> None:
        """Write many whole tensors, one after another; their bytes may be reused on return.

        `on_done` is called with the bytes that are done with, part by part. Raises as `get_tensor`, or leaves that to
        it. Optional; worth it where writing ahead, or not at all, saves time.
        """
        for tensor, data in pairs:
            self.set_tensor(tensor, data)
            on_done(data.nbytes)

    @abstractmethod
    def get_tensor(self, tensor: Tensor, out: memoryview, offset_bytes: int = 0) -> None:
        """Fill `out` with a tensor's bytes from `offset_bytes` on; returns when they are there."""

    def get_tensor_async(self, tensor: Tensor, out: memoryview, offset_bytes: int = 0) -> None:
        """As `get_tensor`, but `out` is filled when `synchronize` returns; the tensor's record may go before.

        Optional; the default is `get_tensor`.
        """
        self.get_tensor(tensor, out, offset_bytes)

    @abstractmethod
    def copy_tensor(self, source: Tensor, target: Tensor) -> bool:
        """Copy between two tensors of one layout without passing the host; False = use get and set."""

    def copy_tensor_async(self, source_stream: Stream, source: Tensor, target_stream: Stream, target: Tensor) -> bool:
        """Queue a copy between tensors of two streams, one of them this one; False = cannot.

        The copy is made after all that is queued on either stream, and before all that is queued later; no stream
        waits as a whole. The target's stream is asked first, and then the source's if it is of another class. Never
        opens a connection. Optional; the default declines.
        """
        return False

    def fetch_tensor(self, tensor: Tensor) -> Future[memoryview]:
        """Queue a read of a whole tensor; the future gives its bytes.

        Raises nothing itself; callbacks of the future must not block. Optional; the default is `get_tensor`.
        """
        future: Future[memoryview] = Future()
        result = memoryview(bytearray(tensor.nbytes))
        try:
            self.get_tensor(tensor, result)
        except RpcBackendError as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        return future

    def set_tensor_when(self, tensor: Tensor, data: Future[memoryview]) -> None:
        """Queue a write of a whole tensor whose bytes come with `data`; what is queued later waits for it.

        If `data` fails, that is the error of this work. Optional; the default waits.
        """
        self.set_tensor(tensor, data.result())

    @abstractmethod
    def compute(self, plan: Plan) -> None:
        """Queue a plan of this device."""

    def submit(self, task: Task, run: TaskRun) -> Future[list[memoryview]]:
        """Queue one run of a task of this device; the future gives the bytes of its `reads`.

        Returns at once if the stream can queue, and never opens a connection. The future raises what went wrong in
        the task, or in work queued before it. Callbacks of the future run on any thread and must not block. The
        default does everything before it returns; a device that tasks can send to must override it.
        """
        future: Future[list[memoryview]] = Future()
        try:
            future.set_result(self._run_task(task, run))
        except RpcBackendError as error:
            future.set_exception(error)
        return future

    def _run_task(self, task: Task, run: TaskRun) -> list[memoryview]:
        if task.receives or task.onward:
            raise GraphError("this device neither receives tensors from other devices nor sends to them")
        for tensor, value in zip(task.writes, run.values, strict=True):
            self.set_tensor(tensor, value)
        self.compute(task.plan)
        results = [memoryview(bytearray(tensor.nbytes)) for tensor in task.reads]
        for tensor, result in zip(task.reads, results, strict=True):
            self.get_tensor(tensor, result)
        self.synchronize()
        return results

    def record(self, event: Event) -> None:
        """Let an event stand for this point of the stream. Optional; the default waits until it is passed."""
        self.synchronize()
        event.mark(passed())

    def wait(self, event: Event) -> None:
        """Do what is queued later only when an event is passed, on this or another device.

        An error of the work before the event is an error of this stream too. Optional; the default waits.
        """
        event.synchronize()

    def on_failure(self, callback: Callable[[RpcBackendError], None]) -> None:
        """Have `callback` called when queued work fails that no future reports, or when the device is lost.

        It runs on any thread, must not block or raise, and is forgotten when the stream is closed. Optional: a stream
        that queues nothing never calls it.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Return when the device has finished everything queued before."""

    @abstractmethod
    def close(self) -> None:
        """Drop the stream; queued work is finished first. A second call does nothing."""


class Device(ABC):
    """Something that holds buffers and runs graphs."""

    info: DeviceInfo

    @abstractmethod
    def memory(self) -> Memory:
        """Return free and total memory now."""

    @abstractmethod
    def alloc_buffer(self, nbytes: int, usage: BufferUsage = BufferUsage.ANY) -> Buffer:
        """Allocate memory, its content undefined.

        Raises:
            OutOfMemoryError: with the asked and the free figure.
        """

    @abstractmethod
    def supports_op(self, tensor: Tensor) -> bool:
        """Whether `compile` takes this node: its op, element types, strides and parameters."""

    @abstractmethod
    def compile(self, graph: Graph) -> Plan:
        """Compile a checked graph whose tensors all lie in buffers of this device.

        Raises:
            UnsupportedOpError: naming the first node that `supports_op` refuses.
        """

    def warm(self) -> str:
        """Make ready now what first graphs would else wait for, such as compiled code; return a line on it. Optional.

        Raises:
            DeviceError: it failed.
        """
        return f"{self.info.name}: nothing to prepare"

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes to reserve for a tensor; never below `tensor.nbytes`, which is the default."""
        return tensor.nbytes

    def supports_ops(self, tensors: Sequence[Tensor]) -> list[bool]:
        """`supports_op` of many at once. Optional; worth it where a question is a round trip."""
        return [self.supports_op(tensor) for tensor in tensors]

    def alloc_sizes(self, tensors: Sequence[Tensor]) -> list[int]:
        """`alloc_size` of many at once. Optional; worth it where a question is a round trip."""
        return [self.alloc_size(tensor) for tensor in tensors]

    def prepare_task(
        self,
        graph: Graph,
        *,
        writes: Sequence[Tensor] = (),
        reads: Sequence[Tensor] = (),
        receives: Sequence[Tensor] = (),
        onward: Sequence[Onward] = (),
    ) -> Task:
        """Compile a graph as a task of this device. Raises as `compile`. Optional."""
        return Task(self.compile(graph), tuple(writes), tuple(reads), tuple(receives), tuple(onward))

    def can_send_to(self, target: Device) -> bool:
        """Whether a task of this device may send results straight to `target`. Optional; the default cannot."""
        return False

    def drop_tickets(self, tickets: Sequence[bytes], reason: str) -> None:
        """Let tasks that wait for these tickets fail with `reason`: nobody will send to them any more.

        Returns at once and never raises. A ticket that was used, or that nobody waits for, is no error. Optional.
        """

    @property
    def buries_tickets(self) -> bool:
        """Whether `bury_tickets` does what it says. Optional; the default does not."""
        return False

    def bury_tickets(self, tickets: Sequence[bytes]) -> None:
        """Keep nothing that came or comes under these tickets: no task will ask for it.

        Returns at once and never raises. Optional.
        """

    def create_event(self) -> Event:
        """Return a new event, passed as long as no stream records it."""
        return Event()

    @abstractmethod
    def create_stream(self) -> Stream:
        """Return a new stream of this device."""

    @abstractmethod
    def close(self) -> None:
        """Close the device; its buffers and streams must not be used after. A second call does nothing."""
