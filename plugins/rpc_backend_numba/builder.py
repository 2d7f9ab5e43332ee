"""The plan under construction: rows, and the blocks of memory that they share.

Belongs here: collecting rows. Must not be here: operations (`lowering`), when rows run (`stages`), running (`plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy.typing as npt

from rpc_backend.plugin_api import Tensor, host_address
from rpc_backend_numba.arguments import Operand, Param, Parts, Row, Shared, Span


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
        self._nodes: tuple[int, ...] = (0,)

    def start_nodes(self, positions: Sequence[int]) -> None:
        """Say which nodes of the graph the next rows compute."""
        self._nodes = tuple(positions)

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
        parts: Sequence[Parts | None] = (),
        also_writes: Sequence[Tensor] = (),
    ) -> None:
        """Add a kernel call that reads `sources` and `shared` blocks and writes `target`.

        `operands` describes the tensors where the kernel is to see them other than they are; `parts` says of the target
        and of each source how threads share it, `also_writes` which tensors it writes beside the target, in its parts.
        """
        tensors = [target, *sources]
        seen = operands if operands is not None else [Operand.of(tensor) if tensor else None for tensor in tensors]
        shares = [*parts, *([None] * (len(tensors) - len(parts)))]
        reads = [span_of(tensor, own) for tensor, own in zip(sources, shares[1:], strict=True) if tensor is not None]
        reads += [Span(block, self.block_nbytes[block.block]) for block in shared]
        writes = [span_of(tensor, shares[0]) for tensor in (target, *also_writes)]
        self.add(Row(kernel, self._nodes[-1], seen, params, reads, writes, private_nbytes, self._nodes))

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
        parts: Parts | None = None,
    ) -> Shared:
        """Return a shared block that `kernel` fills from `sources`; one call is enough while they are unchanged.

        The kernel sees the sources as tensors 1, 2, …; `params` gives its parameters for the block. It may read
        other `shared` blocks too. `parts` says how threads share the sources.
        """
        tensors = [tensor for tensor in sources if tensor is not None]
        full_key = (kernel, key, *shared, *((host_address(tensor), tensor.ne, tensor.nb) for tensor in tensors))
        found = self._prepared.get(full_key)
        if found is not None:
            return found[0]
        block = self.block(nbytes)
        operands = [None, *(Operand.of(tensor) if tensor else None for tensor in sources)]
        reads = [span_of(tensor, parts) for tensor in tensors]
        reads += [Span(other, self.block_nbytes[other.block]) for other in shared]
        self.add(Row(kernel, self._nodes[-1], operands, params(block), reads, [Span(block, nbytes)]))
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


def span_of(tensor: Tensor, parts: Parts | None = None) -> Span:
    """Return the memory of a placed tensor."""
    return Span(host_address(tensor), tensor.nbytes, parts)


def _overlap(a: Span, b: Span) -> bool:
    if isinstance(a.start, Shared) or isinstance(b.start, Shared):
        return a.start == b.start
    return a.start < b.start + b.nbytes and b.start < a.start + a.nbytes
