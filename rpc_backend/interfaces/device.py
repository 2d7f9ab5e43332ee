"""The nouns of compute: Device, Buffer, Plan, Stream. Local and remote devices implement the same ones.

Belongs here: abstract classes and the small records they speak in. Must not be here: anything that
works for one kind of device only (see `host_memory`, `serial_stream`).

Any thread may call any method, unless a method says otherwise. Errors are those of `errors`; what
comes out of a foreign library is mapped by the implementation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from rpc_backend.graph import Graph, Tensor


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
        """Copy `data` (contiguous bytes) into the buffer."""

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

    @abstractmethod
    def get_tensor(self, tensor: Tensor, out: memoryview, offset_bytes: int = 0) -> None:
        """Fill `out` with a tensor's bytes from `offset_bytes` on; returns when they are there."""

    @abstractmethod
    def copy_tensor(self, source: Tensor, target: Tensor) -> bool:
        """Copy between two tensors of one layout without passing the host; False = use get and set."""

    @abstractmethod
    def compute(self, plan: Plan) -> None:
        """Queue a plan of this device."""

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

    def alloc_size(self, tensor: Tensor) -> int:
        """Bytes to reserve for a tensor; never below `tensor.nbytes`, which is the default."""
        return tensor.nbytes

    def supports_ops(self, tensors: Sequence[Tensor]) -> list[bool]:
        """`supports_op` of many at once. Optional; worth it where a question is a round trip."""
        return [self.supports_op(tensor) for tensor in tensors]

    def alloc_sizes(self, tensors: Sequence[Tensor]) -> list[int]:
        """`alloc_size` of many at once. Optional; worth it where a question is a round trip."""
        return [self.alloc_size(tensor) for tensor in tensors]

    @abstractmethod
    def create_stream(self) -> Stream:
        """Return a new stream of this device."""

    @abstractmethod
    def close(self) -> None:
        """Close the device; its buffers and streams must not be used after. A second call does nothing."""
