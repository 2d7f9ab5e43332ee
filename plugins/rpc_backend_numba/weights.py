"""Weights in memory: which rows lie interleaved, and that nobody else notices.

Belongs here: buffers of weights, and what is known of the order of their bytes. Must not be here: choosing the order
(`arranger`), moving the bytes (`kernels.interleave`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Protocol

from rpc_backend.plugin_api import Buffer, BufferUsage, Device, ElementType, HostBuffer, Tensor
from rpc_backend_numba.formats import FORMATS, TILE_ROWS


@dataclass(frozen=True, slots=True)
class Region:
    """The memory of a quantised tensor, packed: in each of its matrices all whole groups of rows can be interleaved.

    `offset` is that in its buffer, `n` the elements of a row, `n_rows` those of a matrix.
    """

    offset: int
    kind: ElementType
    n: int
    n_rows: int
    n_matrices: int

    @classmethod
    def of(cls, tensor: Tensor) -> Region | None:
        """Return the region of a placed tensor, None if its rows cannot be interleaved."""
        if tensor.type.name not in FORMATS or not tensor.is_contiguous or tensor.ne[1] < TILE_ROWS:
            return None
        _, offset = tensor.location()
        return cls(offset, tensor.type, tensor.ne[0], tensor.ne[1], tensor.ne[2] * tensor.ne[3])

    @property
    def row_nbytes(self) -> int:
        return self.kind.row_nbytes(self.n)

    @property
    def end(self) -> int:
        return self.offset + self.row_nbytes * self.n_rows * self.n_matrices

    def overlaps(self, start: int, end: int) -> bool:
        return self.offset < end and start < self.end

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield offset and number of the groups of each matrix that hold bytes of [start, end)."""
        group_nbytes, matrix_nbytes = self.row_nbytes * TILE_ROWS, self.row_nbytes * self.n_rows
        for matrix in range(self.n_matrices):
            base = self.offset + matrix * matrix_nbytes
            first = max(0, (start - base) // group_nbytes)
            last = min(self.n_rows // TILE_ROWS, -(-(end - base) // group_nbytes))
            if first < last:
                yield base + first * group_nbytes, last - first


class Rearranger(Protocol):
    """What moves the bytes of regions. Its lock is held by plans that run, and before that of a buffer."""

    lock: RLock

    def before_write(self, buffer: WeightsBuffer, start: int, end: int) -> None: ...

    def read(self, buffer: WeightsBuffer, region: Region, start: int, out: memoryview) -> None: ...


class WeightsBuffer(HostBuffer):
    """A buffer whose regions may be interleaved; reading and writing see the original bytes.

    `agreed` are the regions that plans take for interleaved, `interleaved` those that are so now; what is `pinned`,
    ranges of bytes that do not touch, stays plain. All three change under the rearranger's lock only, and the order of
    bytes under `lock` too, which whoever reads or writes holds.
    """

    def __init__(self, device: Device, nbytes: int, rearranger: Rearranger) -> None:
        super().__init__(device, nbytes, BufferUsage.WEIGHTS)
        self.agreed: frozenset[Region] = frozenset()
        self.interleaved: frozenset[Region] = frozenset()
        self.pinned: frozenset[tuple[int, int]] = frozenset()
        self.lock = RLock()
        self._rearranger = rearranger

    def write(self, offset: int, data: memoryview) -> None:
        with self._writing(offset, data.nbytes):
            super().write(offset, data)

    def fill(self, offset: int, nbytes: int, value: int) -> None:
        with self._writing(offset, nbytes):
            super().fill(offset, nbytes, value)

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        if not isinstance(source, HostBuffer):
            return False
        between = memoryview(bytearray(nbytes))  # never the locks of two buffers at a time
        source.read_into(source_offset, between)
        self.write(offset, between)
        return True

    def read_into(self, offset: int, out: memoryview) -> None:
        with self.lock:
            super().read_into(offset, out)
            for region in self.touched(offset, offset + out.nbytes):
                self._rearranger.read(self, region, offset, out)

    def close(self) -> None:
        super().close()
        self.agreed = self.interleaved = frozenset()

    def touched(self, start: int, end: int) -> list[Region]:
        """Return the interleaved regions that have bytes in [start, end)."""
        return [region for region in self.interleaved if region.overlaps(start, end)]

    @contextmanager
    def _writing(self, offset: int, nbytes: int) -> Iterator[None]:
        end = offset + nbytes
        self._writable_range(offset, nbytes)  # a write that fails changes nothing
        with self.lock:
            if not self.touched(offset, end):  # no plan need be waited for
                yield
                return
        with self._rearranger.lock, self.lock:
            self._rearranger.before_write(self, offset, end)
            yield
