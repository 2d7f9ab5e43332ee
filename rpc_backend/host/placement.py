"""Memory for weights and caches: leaves packed into buffers of their devices, and the upload.

Belongs here: what must be done once per model. Must not be here: graphs, or the choice of device.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import DeviceError, GraphError, OutOfMemoryError
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


class Upload:
    """Weights on their way to their devices, all devices side by side, from its making on.

    Use it as a context manager: left with an error, it gives up the rest.
    """

    def __init__(self, weights: Mapping[Device, Sequence[tuple[Tensor, Bytes]]], on_progress: OnProgress) -> None:
        """`on_progress` is called from several threads, one at a time."""
        self._counter = _ProgressCounter(
            sum(data.nbytes for pairs in weights.values() for _, data in pairs), on_progress
        )
        self._pool = ThreadPoolExecutor(max_workers=max(1, len(weights)), thread_name_prefix="upload")
        self._futures = [
            self._pool.submit(_upload_one, device, pairs, self._counter) for device, pairs in weights.items()
        ]

    def wait(self) -> int:
        """Return the bytes of all weights when they are in place. Raises the first error of a device."""
        for future in as_completed(self._futures):
            future.result()
        return self._counter.total_nbytes

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._counter.give_up()
        self._pool.shutdown()


class _ProgressCounter:
    def __init__(self, total_nbytes: int, on_progress: OnProgress) -> None:
        self.total_nbytes = total_nbytes
        self._done = 0
        self._on_progress = on_progress
        self._is_given_up = False
        self._lock = threading.Lock()

    def give_up(self) -> None:
        """Let every thread that counts end."""
        self._is_given_up = True

    def add(self, nbytes: int) -> None:
        """Count bytes. Raises DeviceError when the upload was given up."""
        if self._is_given_up:
            raise DeviceError("the upload was given up")
        with self._lock:
            self._done += nbytes
            self._on_progress(LoadProgress("upload", self._done, self.total_nbytes))


def _upload_one(device: Device, pairs: Sequence[tuple[Tensor, Bytes]], counter: _ProgressCounter) -> None:
    stream = device.create_stream()
    try:
        stream.load_tensors(_read_ahead(pairs), counter.add)
        stream.synchronize()
    finally:
        stream.close()


def _read_ahead(pairs: Sequence[tuple[Tensor, Bytes]]) -> Iterator[tuple[Tensor, memoryview]]:
    """Yield what to upload, while the file is read on to the next tensor."""
    for number, (tensor, data) in enumerate(pairs):
        for _, soon in pairs[number : number + 2] if number == 0 else pairs[number + 1 : number + 2]:
            want_soon(soon)
        yield tensor, data.data


def want_soon(data: Bytes) -> bool:
    """Ask the system to read mapped bytes of a file now, without waiting; False = they are not mapped from one."""
    owner: object = data
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if not isinstance(owner, mmap.mmap) or not hasattr(mmap, "MADV_WILLNEED"):
        return False
    start = data.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    first = start - start % mmap.PAGESIZE
    owner.madvise(mmap.MADV_WILLNEED, first, start + data.nbytes - first)
    return True
