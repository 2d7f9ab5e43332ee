"""Memory for weights and caches: leaves packed into buffers of their devices, and the upload.

Belongs here: what must be done once per model. Must not be here: graphs, or the choice of device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import GraphError, OutOfMemoryError
from rpc_backend.graph import Tensor
from rpc_backend.interfaces import Buffer, BufferUsage, Device, HostBuffer

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is; `total_nbytes` 0 = this stage does not count bytes."""

    stage: str
    done_nbytes: int = 0
    total_nbytes: int = 0


OnProgress = Callable[[LoadProgress], None]


def aligned(nbytes: int, alignment: int) -> int:
    """Return `nbytes` rounded up to a multiple of `alignment`."""
    return -(-nbytes // alignment) * alignment


def leaf_sizes(device: Device, leaves: Sequence[Tensor]) -> list[int]:
    """Return the bytes that each leaf takes in a buffer of `device`, padding included."""
    return [aligned(size, device.info.alignment) for size in device.alloc_sizes(leaves)]


def place_leaves(device: Device, leaves: Sequence[Tensor], usage: BufferUsage) -> list[Buffer]:
    """Give every leaf memory on `device`, in as few buffers as its largest buffer allows.

    Raises:
        OutOfMemoryError: the device is full, or one leaf is larger than its largest buffer.
    """
    limit = device.info.max_buffer_nbytes
    groups: list[_Group] = []
    for leaf, size in zip(leaves, leaf_sizes(device, leaves), strict=True):
        if size > limit:
            raise OutOfMemoryError(f"{leaf} of {size} bytes is above the largest buffer of {device.info.name}, {limit}")
        if not groups or groups[-1].nbytes + size > limit:
            groups.append(_Group())
        groups[-1].add(leaf, size)
    return [group.place(device, usage) for group in groups]


@dataclass(slots=True)
class _Group:
    """Leaves that share one buffer, each with its offset."""

    nbytes: int = 0
    members: list[tuple[Tensor, int]] = field(default_factory=list)

    def add(self, leaf: Tensor, nbytes: int) -> None:
        self.members.append((leaf, self.nbytes))
        self.nbytes += nbytes

    def place(self, device: Device, usage: BufferUsage) -> Buffer:
        buffer = device.alloc_buffer(self.nbytes, usage)
        for leaf, offset in self.members:
            leaf.buffer, leaf.offset = buffer, offset
        return buffer


def map_leaf(device: Device, leaf: Tensor, data: Bytes) -> None:
    """Let a leaf of a host device use `data` where it lies, without a copy."""
    if not device.info.is_host:
        raise GraphError(f"device {device.info.name} cannot use memory of this process")
    leaf.buffer, leaf.offset = HostBuffer(device, data.nbytes, BufferUsage.WEIGHTS, data), 0


def upload(weights: Mapping[Device, Sequence[tuple[Tensor, Bytes]]], on_progress: OnProgress) -> int:
    """Write weights to their devices, all devices side by side, and return the bytes sent.

    `on_progress` is called from several threads, one at a time.
    """
    total = sum(data.nbytes for pairs in weights.values() for _, data in pairs)
    counter = _ProgressCounter(total, on_progress)
    with ThreadPoolExecutor(max_workers=max(1, len(weights))) as pool:
        for future in [pool.submit(_upload_one, device, pairs, counter) for device, pairs in weights.items()]:
            future.result()
    return total


class _ProgressCounter:
    def __init__(self, total_nbytes: int, on_progress: OnProgress) -> None:
        self._total = total_nbytes
        self._done = 0
        self._on_progress = on_progress
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            self._on_progress(LoadProgress("upload", self._done, self._total))


def _upload_one(device: Device, pairs: Sequence[tuple[Tensor, Bytes]], counter: _ProgressCounter) -> None:
    stream = device.create_stream()
    try:
        for tensor, data in pairs:
            stream.set_tensor(tensor, data.data)
            counter.add(data.nbytes)
        stream.synchronize()
    finally:
        stream.close()
