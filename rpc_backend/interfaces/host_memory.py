"""Buffers that are memory of this process.

Belongs here: what any backend whose memory numpy can address shares. Must not be here: anything a
single backend needs.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import DeviceError, GraphError, OutOfMemoryError
from rpc_backend.graph import Tensor
from rpc_backend.interfaces.device import Buffer, BufferUsage, Device

Bytes = npt.NDArray[np.uint8]

# Python maps shared memory if not told otherwise, whose pages are slower to get and are never huge. Large pages are not
# asked for: with a system that is set to give them, they come; asked for on others, the first touch of memory that a
# virtual machine gave back to its host took six times as long, and reading it gained nothing.
_PRIVATE: dict[str, int] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}  # not on Windows
)


class HostBuffer(Buffer):
    """A buffer over a numpy array of bytes; `bytes` is the memory itself, `address` its first byte.

    Without `memory` it allocates whole zeroed pages, which count only once they are written. With
    `memory` (say, a mapped file) it makes no copy and, if that is read-only, refuses to write.
    """

    def __init__(
        self, device: Device, nbytes: int, usage: BufferUsage = BufferUsage.ANY, memory: Bytes | None = None
    ) -> None:
        self.device = device
        self.nbytes = nbytes
        self.usage = usage
        self._bytes: Bytes | None = _allocate(nbytes) if memory is None else memory

    @property
    def bytes(self) -> Bytes:
        if self._bytes is None:
            raise DeviceError("the buffer is closed")
        return self._bytes

    @property
    def address(self) -> int:
        return self.bytes.ctypes.data

    def write(self, offset: int, data: memoryview) -> None:
        self._writable_range(offset, data.nbytes)[:] = np.frombuffer(data, np.uint8)

    def read_into(self, offset: int, out: memoryview) -> None:
        np.frombuffer(out, np.uint8)[:] = self._range(offset, out.nbytes)

    def fill(self, offset: int, nbytes: int, value: int) -> None:
        self._writable_range(offset, nbytes)[:] = value

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        if not isinstance(source, HostBuffer):
            return False
        source.read_into(source_offset, self._writable_range(offset, nbytes).data)
        return True

    def close(self) -> None:
        self._bytes = None

    def _writable_range(self, offset: int, nbytes: int) -> Bytes:
        found = self._range(offset, nbytes)
        if not found.flags.writeable:
            raise DeviceError("the buffer is read-only memory")
        return found

    def _range(self, offset: int, nbytes: int) -> Bytes:
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise GraphError(f"{nbytes} bytes at {offset} are outside a buffer of {self.nbytes}")
        return self.bytes[offset : offset + nbytes]


def host_bytes(tensor: Tensor) -> Bytes:
    """Return the bytes that a placed tensor of a host device spans, as a view of its buffer.

    Raises:
        GraphError: the tensor is not placed in a HostBuffer.
    """
    buffer, offset = tensor.location()
    if not isinstance(buffer, HostBuffer):
        raise GraphError(f"{tensor} is not placed in host memory")
    return buffer._range(offset, tensor.nbytes)


def host_address(tensor: Tensor) -> int:
    """Return the address of the first byte of a placed tensor of a host device. Raises as `host_bytes`."""
    buffer, offset = tensor.location()
    if not isinstance(buffer, HostBuffer):
        raise GraphError(f"{tensor} is not placed in host memory")
    return buffer.address + offset


def _allocate(nbytes: int) -> Bytes:
    if nbytes == 0:
        return np.empty(0, np.uint8)
    try:
        pages = mmap.mmap(-1, nbytes, **_PRIVATE)
    except (OSError, OverflowError, ValueError) as error:
        raise OutOfMemoryError(f"cannot allocate {nbytes} bytes of host memory") from error
    return np.frombuffer(pages, np.uint8)
