"""What all executions share: a stream and a compute buffer per device.

Belongs here: their allocation, growth and end. Must not be here: graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import DeviceError, PlanError
from rpc_backend.interfaces import Buffer, BufferUsage, Device, Stream


class Closeable(Protocol):
    """What the workspace can end."""

    def close(self) -> None: ...


class Workspace:
    """Streams, compute buffers and host staging memory of a list of devices.

    `generation` grows whenever a buffer is replaced: tensors placed before are then nowhere. `owner` is who last
    wrote into the compute buffers. `users` are closed with the workspace. `through_host` are the pairs (source, target)
    that cannot copy directly.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        if not devices:
            raise PlanError("a scheduler needs at least one device")
        self.devices = tuple(devices)
        self.generation = 0
        self.owner: object = None
        self.users: dict[Closeable, None] = {}
        self.through_host: set[tuple[int, int]] = set()
        self._staging = np.empty(0, np.uint8)
        self._buffers: list[Buffer | None] = [None] * len(devices)
        self._closed = False
        self.streams: list[Stream] = []
        try:
            for device in devices:
                self.streams.append(device.create_stream())
        except BaseException:
            self.close()
            raise

    def buffer(self, device: int) -> Buffer:
        """Return the compute buffer of a device, which must have been reserved."""
        buffer = self._buffers[device]
        assert buffer is not None, "a plan with slots on a device reserves its buffer first"
        return buffer

    def reserve(self, nbytes: Sequence[int]) -> None:
        """Make every compute buffer at least this large; one that is too small is replaced.

        Raises:
            OutOfMemoryError: from the device. Its buffer is then gone until the next call.
        """
        self.check_open()
        for index, (device, wanted) in enumerate(zip(self.devices, nbytes, strict=True)):
            buffer = self._buffers[index]
            if wanted <= (0 if buffer is None else buffer.nbytes):
                continue
            self.generation += 1
            self.owner = None
            if buffer is not None:
                self.streams[index].synchronize()
                self._buffers[index] = None
                buffer.close()
            self._buffers[index] = device.alloc_buffer(wanted, BufferUsage.COMPUTE)

    def staging(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return `nbytes` of host memory; the next call returns the same memory again."""
        if nbytes > self._staging.size:
            self._staging = np.empty(nbytes, np.uint8)
        return self._staging[:nbytes]

    def check_open(self) -> None:
        """Raise DeviceError if the workspace is closed."""
        if self._closed:
            raise DeviceError("the scheduler is closed")

    def close(self) -> None:
        """Close users, then streams, then buffers. A second call does nothing.

        Everything is closed, whatever fails; the last failure is raised then.
        """
        self._closed = True
        buffers = [buffer for buffer in self._buffers if buffer is not None]
        with ExitStack() as last_first:
            for item in (*buffers, *self.streams, *self.users):
                last_first.callback(item.close)
            self._buffers, self.streams = [], []
