"""The device: host memory, and a plan that walks the nodes.

Belongs here: Device and plan of this backend. Must not be here: what operations compute.
"""

from __future__ import annotations

import numpy as np
import psutil

from rpc_backend.plugin_api import (
    BufferUsage,
    ComputeError,
    Device,
    DeviceInfo,
    Graph,
    HostBuffer,
    Memory,
    OutOfMemoryError,
    RunnablePlan,
    SerialStream,
    Tensor,
    UnsupportedOpError,
)
from rpc_backend_reference.ops import KERNELS


class ReferenceDevice(Device):
    """The processor of this machine through numpy, on the caller's thread."""

    def __init__(self) -> None:
        self.info = DeviceInfo(
            name="reference", description="numpy, the meaning of every operation", kind="cpu", is_host=True
        )

    def memory(self) -> Memory:
        memory = psutil.virtual_memory()
        return Memory(memory.available, memory.total)

    def alloc_buffer(self, nbytes: int, usage: BufferUsage = BufferUsage.ANY) -> HostBuffer:
        free = self.memory().free_nbytes
        if not 0 <= nbytes <= free:
            raise OutOfMemoryError(f"cannot allocate {nbytes} bytes on device reference, {free} are free")
        return HostBuffer(self, nbytes, usage)

    def supports_op(self, tensor: Tensor) -> bool:
        kernel = KERNELS.get(tensor.op.name) if tensor.op else None
        return kernel is not None and kernel.supports(tensor)

    def compile(self, graph: Graph) -> ReferencePlan:
        for node in graph.nodes:
            if not self.supports_op(node):
                types = ", ".join(source.type.name for source in node.sources)
                raise UnsupportedOpError(f"device reference cannot run {node} of {types}")
        return ReferencePlan(graph)

    def create_stream(self) -> SerialStream:
        return SerialStream(self)

    def close(self) -> None:
        """Nothing is held."""


class ReferencePlan(RunnablePlan):
    """The graph itself."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self) -> None:
        with np.errstate(all="ignore"):  # infinities and NaN are values here
            for node in self.graph.nodes:
                if node.n_elements:
                    _run_node(node)


def _run_node(node: Tensor) -> None:
    name = node.op.name if node.op else "leaf"
    try:
        KERNELS[name].run(node)
    except ComputeError as error:
        raise error.located(op=name, device="reference") from None
    except (ArithmeticError, ValueError, MemoryError) as error:
        raise ComputeError(f"{node} failed: {error}").located(op=name, device="reference") from error
