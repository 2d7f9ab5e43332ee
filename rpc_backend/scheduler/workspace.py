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
from rpc_backend.interfaces import Buffer, BufferUsage, Device, QueuedStream, Stream
from rpc_backend.scheduler.pipeline import Pipeline


class Closeable(Protocol):
    """What the workspace can end."""

    def close(self) -> None: ...


class Workspace:
    """Streams, compute buffers and host staging memory of a list of devices.

    `generation` grows whenever a buffer is replaced: tensors placed before are then nowhere. `owner` is who last
    wrote into the compute buffers. `users` are closed with the workspace. `through_host` are the pairs (source, target)
    that cannot copy directly. Unless it `is_synchronous`, a stream that does each task before it returns is queued, so
    that devices of this process compute at the same time.
    """

    def __init__(self, devices: Sequence[Device], *, synchronous: bool = False, timeout_s: float = 600.0) -> None:
        if not devices:
            raise PlanError("a scheduler needs at least one device")
        self.devices = tuple(devices)
        self.is_synchronous = synchronous
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
                stream = device.create_stream()
                waits = type(stream).submit is Stream.submit  # the default one
                self.streams.append(QueuedStream(stream, timeout_s) if waits and not synchronous else stream)
        except BaseException:
            for stream in self.streams:
                stream.close()
            raise
        self.pipeline = Pipeline(self.devices, self.streams, timeout_s)

    def can_send(self, source: int, target: int) -> bool:
        """Whether tasks of one device can send straight to another."""
        return self.devices[source].can_send_to(self.devices[target])

    def buffer(self, device: int) -> Buffer:
        """Return the compute buffer of a device, which must have been reserved."""
        buffer = self._buffers[device]
        assert buffer is not None, "a plan with slots on a device reserves its buffer first"
        return buffer

    def reserve(self, nbytes: Sequence[int]) -> None:
        """Make every compute buffer at least this large; one that is too small is replaced, when no run is under way.

        Raises:
            OutOfMemoryError: from the device. Its buffer is then gone until the next call.
            DeadlineError: runs are still under way.
        """
        self.check_open()
        for index, (device, wanted) in enumerate(zip(self.devices, nbytes, strict=True)):
            buffer = self._buffers[index]
            if wanted <= (0 if buffer is None else buffer.nbytes):
                continue
            self.pipeline.wait_idle()
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

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raise DeviceError if the workspace is closed."""
        if self._closed:
            raise DeviceError("the scheduler is closed")

    def close(self) -> None:
        """Fail the runs under way, then close users, streams and buffers. A second call does nothing.

        Everything is closed, whatever fails; the last failure is raised then.
        """
        if self._closed:
            return
        self._closed = True
        self.pipeline.fail_all("the scheduler was closed while the run was under way")
        buffers = [buffer for buffer in self._buffers if buffer is not None]
        with ExitStack() as last_first:
            for item in (*buffers, *self.streams, *self.users):
                last_first.callback(item.close)
            last_first.callback(self.pipeline.wait_idle)  # for what devices are at
            self._buffers, self.streams = [], []
