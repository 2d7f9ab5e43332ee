"""A compiled graph.

Belongs here: running a table, and the error a kernel left. Must not be here: numba.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rpc_backend.plugin_api import ComputeError, Graph, HostBuffer, RunnablePlan, Tensor
from rpc_backend_numba import layout
from rpc_backend_numba.arranger import Arranger, Uses
from rpc_backend_numba.table import Call, Table
from rpc_backend_numba.threads import ComputeThreads


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call of a plan.

    `nodes` are what it computes; none if it makes something ready for `node`, else `node` is the last of them.
    `call` has the addresses of the kernel's code and of its argument block (`layout`), and whether threads meet first.
    """

    kernel: str
    node: Tensor
    nodes: Sequence[Tensor]
    call: Call


class NumbaPlan(RunnablePlan):
    """The table of a graph's kernel calls, run by a set of threads.

    `make_table` builds it for the order of weights that is agreed on at that time; a later change builds it anew.
    """

    def __init__(
        self, graph: Graph, make_table: Callable[[], Table], arranger: Arranger, threads: ComputeThreads
    ) -> None:
        self.graph = graph
        self._make_table = make_table
        self._arranger = arranger
        self._threads = threads
        self._buffers = _buffers_of(graph)
        self._uses = Uses.of(graph)
        self._version = -1
        with arranger.lock:
            self._interleaved = arranger.settle(self._uses)
            self._table = make_table()

    def run(self) -> None:
        held = [buffer.bytes for buffer in self._buffers]  # a buffer that is closed meanwhile keeps its memory
        with self._arranger.lock:
            if self._version != self._arranger.version:
                self._settle()
            error = self._table.error
            error[layout.ERROR_NODE] = 0
            self._threads.run(self._table.rows)
            failed = [int(word) for word in error]
            self._arranger.count_run()
        del held
        if failed[layout.ERROR_NODE]:
            self._raise(failed)

    def steps(self) -> list[Step]:
        """Return the kernel calls that a run makes, in order; they hold until the plan runs again."""
        nodes = self.graph.nodes
        return [
            Step(call.kernel, nodes[call.position], [nodes[index] for index in call.nodes], call)
            for call in self._table.calls()
        ]

    def run_steps(self, first: int, last: int) -> None:
        """Run steps [first, last) alone, for measuring: their sources are what was there before."""
        with self._arranger.lock:
            self._threads.run(self._table.rows[first:last])

    def _settle(self) -> None:
        """See to it that the weights lie as the table takes them to."""
        interleaved = self._arranger.settle(self._uses)
        if interleaved != self._interleaved:
            self._interleaved, self._table = interleaved, self._make_table()
        self._arranger.interleave(interleaved)
        self._version = self._arranger.version

    def _raise(self, error: Sequence[int]) -> None:
        op = self.graph.nodes[error[layout.ERROR_NODE] - 1].op
        name = op.name if op else "leaf"
        index, limit = error[layout.ERROR_INDEX], error[layout.ERROR_LIMIT]
        text = f"{name}: row index {index} is not one of the {limit} rows 0 to {limit - 1}"
        raise ComputeError(text).located(op=name, device="cpu")


def _buffers_of(graph: Graph) -> Sequence[HostBuffer]:
    buffers = {id(buffer): buffer for buffer, _ in (tensor.location() for tensor in graph.tensors())}
    return [buffer for buffer in buffers.values() if isinstance(buffer, HostBuffer)]
