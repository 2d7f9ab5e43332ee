"""A device whose buffers are memory of this process.

Belongs here: what such devices share. Must not be here: operations, or anything a single backend needs.
"""

from __future__ import annotations

from rpc_backend.errors import OutOfMemoryError
from rpc_backend.interfaces.device import BufferUsage, Device, Memory, Stream
from rpc_backend.interfaces.fresh_memory import touch_from_the_end
from rpc_backend.interfaces.host_memory import HostBuffer
from rpc_backend.interfaces.serial_stream import SerialStream


class HostDevice(Device):
    """Implements memory and streams; a compute backend adds `info`, `supports_op` and `compile`."""

    def memory(self) -> Memory:
        import psutil  # only where a device is used: naming the class must be cheap

        machine = psutil.virtual_memory()
        return Memory(machine.available, machine.total)

    def alloc_buffer(self, nbytes: int, usage: BufferUsage = BufferUsage.ANY) -> HostBuffer:
        free = self.memory().free_nbytes
        if not 0 <= nbytes <= free:
            raise OutOfMemoryError(f"cannot allocate {nbytes} bytes on device {self.info.name}, {free} are free")
        buffer = self.make_buffer(nbytes, usage)
        if usage is BufferUsage.WEIGHTS:
            touch_from_the_end(buffer.bytes)
        return buffer

    def make_buffer(self, nbytes: int, usage: BufferUsage) -> HostBuffer:
        """Return a new buffer; a device with buffers of its own class overrides it."""
        return HostBuffer(self, nbytes, usage)

    def create_stream(self) -> Stream:
        return SerialStream(self)

    def close(self) -> None:
        """Nothing is held."""
