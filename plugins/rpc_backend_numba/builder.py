"""The plan under construction: rows, shared blocks, and when threads must wait for each other.

Belongs here: collecting rows and giving them memory. Must not be here: operations (`lowering`), running (`plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rpc_backend.plugin_api import Tensor, host_address
from rpc_backend_numba.arguments import Operand, Param, Row, Shared, Span

_ALIGNMENT = 64


class PlanBuilder:
    """Collects the rows of a graph's nodes, in order.

    A lowering calls `row` for each kernel call and `prepare` for what several nodes can share.
    """

    def __init__(self, lanes: int, is_interleaved: Callable[[Tensor], bool] = lambda tensor: False) -> None:
        self.lanes = lanes
        self.is_interleaved = is_interleaved
        self.rows: list[Row] = []
        self.constants: list[npt.NDArray[Any]] = []
        self.block_nbytes: list[int] = []
        self._prepared: dict[Hashable, tuple[Shared, list[Span]]] = {}
        self._node = 0

    def start_node(self, position: int) -> None:
        """Say which node of the graph the next rows compute."""
        self._node = position

    def row(
        self,
        kernel: str,
        target: Tensor,
        sources: Sequence[Tensor | None],
        params: Sequence[Param] = (),
        *,
        shared: Sequence[Shared] = (),
        private_nbytes: int = 0,
        operands: Sequence[Operand | None] | None = None,
    ) -> None:
        """Add a kernel call that reads `sources` and `shared` blocks and writes `target`.

        `operands` describes the tensors where the kernel is to see them other than they are.
        """
        tensors = [target, *sources]
        seen = operands if operands is not None else [Operand.of(tensor) if tensor else None for tensor in tensors]
        reads = [span_of(tensor) for tensor in sources if tensor is not None]
        reads += [Span(block, self.block_nbytes[block.block]) for block in shared]
        self.add(Row(kernel, self._node, seen, params, reads, [span_of(target)], private_nbytes))

    def add(self, row: Row) -> None:
        """Add a kernel call; what was prepared from memory that it writes is forgotten."""
        self.rows.append(row)
        for key, (_, sources) in list(self._prepared.items()):
            if any(_overlap(written, source) for written in row.writes for source in sources):
                del self._prepared[key]

    def prepare(
        self,
        key: Hashable,
        kernel: str,
        nbytes: int,
        sources: Sequence[Tensor | None],
        params: Callable[[Shared], Sequence[Param]],
        *,
        shared: Sequence[Shared] = (),
    ) -> Shared:
        """Return a shared block that `kernel` fills from `sources`; one call is enough while they are unchanged.

        The kernel sees the sources as tensors 1, 2, …; `params` gives its parameters for the block. It may read
        other `shared` blocks too.
        """
        tensors = [tensor for tensor in sources if tensor is not None]
        full_key = (kernel, key, *shared, *((host_address(tensor), tensor.ne, tensor.nb) for tensor in tensors))
        found = self._prepared.get(full_key)
        if found is not None:
            return found[0]
        block = self.block(nbytes)
        operands = [None, *(Operand.of(tensor) if tensor else None for tensor in sources)]
        reads = [span_of(tensor) for tensor in tensors]
        reads += [Span(other, self.block_nbytes[other.block]) for other in shared]
        self.add(Row(kernel, self._node, operands, params(block), reads, [Span(block, nbytes)]))
        self._prepared[full_key] = (block, reads)
        return block

    def block(self, nbytes: int) -> Shared:
        """Return a new shared block."""
        self.block_nbytes.append(nbytes)
        return Shared(len(self.block_nbytes) - 1)

    def constant(self, values: npt.NDArray[Any]) -> int:
        """Keep an array for as long as the plan lives; return its address."""
        self.constants.append(values)
        return values.ctypes.data

    @property
    def node(self) -> int:
        return self._node


def span_of(tensor: Tensor) -> Span:
    """Return the memory of a placed tensor."""
    return Span(host_address(tensor), tensor.nbytes)


def place_blocks(rows: Sequence[Row], block_nbytes: Sequence[int]) -> tuple[list[int], int]:
    """Give each shared block an offset, so that blocks in use at the same time lie apart.

    Returns the offsets and the bytes of all. A block is in use from the row that writes it to the last that reads it.
    """
    first, last = _lifetimes(rows)
    offsets = [0] * len(block_nbytes)
    live: list[tuple[int, int, int]] = []  # offset, end, last row
    total = 0
    for block in sorted(first, key=lambda item: first[item]):
        live = sorted(entry for entry in live if entry[2] >= first[block])
        size = -(-block_nbytes[block] // _ALIGNMENT) * _ALIGNMENT
        offset = 0
        for start, end, _ in live:
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[block] = offset
        live.append((offset, offset + size, last[block]))
        total = max(total, offset + size)
    return offsets, total


def _lifetimes(rows: Sequence[Row]) -> tuple[dict[int, int], dict[int, int]]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, row in enumerate(rows):
        for span in (*row.reads, *row.writes):
            if isinstance(span.start, Shared):
                first.setdefault(span.start.block, position)
                last[span.start.block] = position
    return first, last


def waits(rows: Sequence[Row], resolve: Callable[[int | Shared], int]) -> npt.NDArray[np.bool_]:
    """Return for each row whether all threads must have finished the rows before it.

    They must if the row touches what a row since the last such wait writes, or writes what one reads.
    """
    result = np.zeros(len(rows), np.bool_)
    reads: list[tuple[int, int]] = []
    writes: list[tuple[int, int]] = []
    for position, row in enumerate(rows):
        own_reads, own_writes = _ranges(row.reads, resolve), _ranges(row.writes, resolve)
        if _any_overlap(own_reads, writes) or _any_overlap(own_writes, writes) or _any_overlap(own_writes, reads):
            result[position] = True
            reads, writes = [], []
        reads += own_reads
        writes += own_writes
    return result


def _ranges(spans: Iterable[Span], resolve: Callable[[int | Shared], int]) -> list[tuple[int, int]]:
    return [(start := resolve(span.start), start + span.nbytes) for span in spans]


def _any_overlap(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> bool:
    return any(start < other_end and other_start < end for start, end in some for other_start, other_end in others)


def _overlap(a: Span, b: Span) -> bool:
    if isinstance(a.start, Shared) or isinstance(b.start, Shared):
        return a.start == b.start
    return a.start < b.start + b.nbytes and b.start < a.start + a.nbytes
