"""The device: this machine's processor.

Belongs here: Device of this backend. Must not be here: numba, which is imported when a kernel must be compiled.
"""

from __future__ import annotations

import logging
import time

from rpc_backend.plugin_api import (
    BufferUsage,
    DeviceInfo,
    Graph,
    HostBuffer,
    HostDevice,
    Tensor,
    UnsupportedOpError,
)
from rpc_backend_numba.arranger import Arranger
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.library import KernelLibrary
from rpc_backend_numba.lowering import LOWERINGS
from rpc_backend_numba.lowering.fusion import groups_of
from rpc_backend_numba.plan import NumbaPlan
from rpc_backend_numba.table import Table
from rpc_backend_numba.threads import ComputeThreads
from rpc_backend_numba.weights import Region, WeightsBuffer

_log = logging.getLogger(__name__)


class NumbaDevice(HostDevice):
    """Host memory and compiled kernels on a fixed number of threads."""

    def __init__(self, library: KernelLibrary, n_threads: int) -> None:
        target = library.target
        self.info = DeviceInfo(
            name="cpu",
            description=f"{target.cpu} with {target.name} kernels, threads: {n_threads}",
            kind="cpu",
            is_host=True,
        )
        self._library = library
        self._threads = ComputeThreads(library, n_threads)
        self._arranger = Arranger(library, self._threads)

    def make_buffer(self, nbytes: int, usage: BufferUsage) -> HostBuffer:
        if usage is BufferUsage.WEIGHTS:
            return WeightsBuffer(self, nbytes, self._arranger)
        return super().make_buffer(nbytes, usage)

    def supports_op(self, tensor: Tensor) -> bool:
        if tensor.op is None:
            return False
        lowering = LOWERINGS.get(tensor.op.name)
        return not tensor.op.moves_data or (lowering is not None and lowering.supports(tensor))

    def compile(self, graph: Graph) -> NumbaPlan:
        for node in graph.nodes:
            if not self.supports_op(node):
                types = ", ".join(source.type.name for source in node.sources)
                raise UnsupportedOpError(f"device cpu cannot run {node} of {types}")
        return NumbaPlan(graph, lambda: self._make_table(graph), self._arranger, self._threads)

    def _make_table(self, graph: Graph) -> Table:
        started = time.monotonic()
        builder = PlanBuilder(self._library.target.lanes, _is_agreed)
        for positions, fusion in groups_of(graph.nodes):
            builder.start_nodes(positions)
            nodes = [graph.nodes[position] for position in positions]
            if fusion is not None:
                fusion.emit(builder, nodes)
            elif (op := nodes[0].op) is not None:
                LOWERINGS[op.name].emit(builder, nodes[0])
        table = Table(builder, self._library, self._threads.n_threads)
        _log.debug("%d nodes are %d rows, planned in %.3f s", len(graph.nodes), len(builder.rows), _since(started))
        return table

    def warm(self) -> str:
        if self._library.folder is None:
            return f"{self.info.name}: kernels cannot be kept, so there is nothing to compile ahead"
        from rpc_backend_numba.warm import warm

        done = warm(self._library.target.name, self._library.folder)
        what = f"{done.n_kernels} kernels for {self.info.description}"
        return f"{self.info.name}: {what}, compiled {done.n_compiled} of them in {done.seconds:.1f} s"

    def close(self) -> None:
        self._threads.close()


def _is_agreed(tensor: Tensor) -> bool:
    buffer, _ = tensor.location()
    return isinstance(buffer, WeightsBuffer) and Region.of(tensor) in buffer.agreed


def _since(started: float) -> float:
    return time.monotonic() - started
