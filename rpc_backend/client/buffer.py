"""A buffer on a worker.

Belongs here: whole-buffer access. Must not be here: tensors.
"""

from __future__ import annotations

from rpc_backend.client.transfers import Transfers, check_range
from rpc_backend.errors import ChannelError, DeviceError
from rpc_backend.graph import Tensor, element_type, encode_tensor
from rpc_backend.interfaces import Buffer, BufferUsage, Device
from rpc_backend.protocol.commands import BUFFER_CLEAR, FREE_BUFFER, MEMSET_TENSOR
from rpc_backend.protocol.records import BufferClear, BufferRef, Record, TensorFill

_BYTE = element_type("I8")


class RemoteBuffer(Buffer):
    """A block of a remote device's memory, known by its handle.

    `write` and `fill` return when the command is on its way; an error is raised by the next call that reads or
    synchronises on the device. `transfers` is the way of its bytes.
    """

    def __init__(self, device: Device, transfers: Transfers, handle: int, nbytes: int, usage: BufferUsage) -> None:
        self.device = device
        self.nbytes = nbytes
        self.usage = usage
        self._handle = handle
        self.transfers = transfers
        self._closed = False

    @property
    def handle(self) -> int:
        """The worker's number of this buffer.

        Raises:
            DeviceError: the buffer is closed.
        """
        if self._closed:
            raise DeviceError("the buffer is closed")
        return self._handle

    def write(self, offset: int, data: memoryview) -> None:
        self.transfers.uploads.write(self._range_record(offset, data.nbytes), data, offset)

    def read_into(self, offset: int, out: memoryview) -> None:
        self.transfers.download(self._range_record(offset, out.nbytes), out, offset)

    def fill(self, offset: int, nbytes: int, value: int) -> None:
        record = self._range_record(offset, nbytes)
        if (offset, nbytes) == (0, self.nbytes):
            self.transfers.queue.post(BUFFER_CLEAR, BufferClear(self.handle, value))
        else:
            self.transfers.queue.post(MEMSET_TENSOR, TensorFill(record, offset, nbytes, value))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self.transfers.queue.free(FREE_BUFFER, BufferRef(self._handle))
        except ChannelError:
            # With the session, the worker frees all its buffers.
            return

    def _range_record(self, offset: int, nbytes: int) -> Record:
        """Return the record of the whole buffer as a row of bytes, once the range is found inside it."""
        handle = self.handle
        check_range(nbytes, offset, self.nbytes, "a buffer")
        return encode_tensor(Tensor(_BYTE, [self.nbytes]), {}, lambda _: (handle, 0), computed=False)
