"""A compiled graph.

Belongs here: running a table, and the error a kernel left. Must not be here: numba.
"""

from __future__ import annotations

from collections.abc import Sequence

from rpc_backend.plugin_api import ComputeError, Graph, HostBuffer, RunnablePlan
from rpc_backend_numba import layout
from rpc_backend_numba.table import Table
from rpc_backend_numba.threads import ComputeThreads


class NumbaPlan(RunnablePlan):
    """The table of a graph's kernel calls, run by a set of threads."""

    def __init__(self, graph: Graph, table: Table, threads: ComputeThreads) -> None:
        self.graph = graph
        self._table = table
        self._threads = threads
        self._buffers = _buffers_of(graph)

    def run(self) -> None:
        held = [buffer.bytes for buffer in self._buffers]  # a buffer that is closed meanwhile keeps its memory
        self._table.error[layout.ERROR_NODE] = 0
        self._threads.run(self._table.rows)
        del held
        failed = int(self._table.error[layout.ERROR_NODE])
        if failed:
            self._raise(failed - 1)

    def _raise(self, position: int) -> None:
        op = self.graph.nodes[position].op
        name = op.name if op else "leaf"
        index, limit = (int(self._table.error[word]) for word in (layout.ERROR_INDEX, layout.ERROR_LIMIT))
        text = f"{name}: row index {index} is not one of the {limit} rows 0 to {limit - 1}"
        raise ComputeError(text).located(op=name, device="cpu")


def _buffers_of(graph: Graph) -> Sequence[HostBuffer]:
    buffers = {id(buffer): buffer for buffer, _ in (tensor.location() for tensor in graph.tensors())}
    return [buffer for buffer in buffers.values() if isinstance(buffer, HostBuffer)]
