"""The address space that the gateway shows to a client, resolved to buffers.

Belongs here: which addresses are which bytes of which buffer. Must not be here: what lies there.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpc_backend.plugin_api import GraphError
from rpc_transport_ggml.wire import TensorRecord


@dataclass(frozen=True, slots=True)
class Region:
    """A buffer: its handle at the worker, its device, and the addresses from `base` on that stand for its bytes."""

    handle: int
    device: int
    base: int
    nbytes: int


class Places:
    """The buffers of one client by the handle that it was told, which is the worker's own."""

    def __init__(self) -> None:
        self._regions: dict[int, Region] = {}

    def add(self, region: Region) -> None:
        """Enter a new buffer."""
        self._regions[region.handle] = region

    def remove(self, handle: int) -> Region:
        """Take a buffer out. Raises GraphError: there is none of this handle."""
        region = self.find(handle)
        del self._regions[handle]
        return region

    def find(self, handle: int) -> Region:
        """Return a buffer. Raises GraphError: there is none of this handle."""
        region = self._regions.get(handle)
        if region is None:
            raise GraphError(f"buffer {handle:#x} is not one of this connection's, or was freed")
        return region

    def locate(self, record: TensorRecord) -> tuple[Region, int]:
        """Return the buffer of a tensor, and the offset of its first byte there.

        Raises:
            GraphError: it is in no buffer of this connection, or its data begins outside.
        """
        if record.buffer == 0:
            raise GraphError(f"tensor {record.name!r} is in no buffer of this server")
        region = self.find(record.buffer)
        offset = record.data - region.base
        if not 0 <= offset <= region.nbytes:
            raise GraphError(f"tensor {record.name!r} has its data at {record.data:#x}, outside its buffer")
        return region, offset
