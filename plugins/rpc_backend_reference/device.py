"""The device: host memory, and a plan that walks the nodes.

Belongs here: Device and plan of this backend. Must not be here: what operations compute.
"""

from __future__ import annotations

import numpy as np

from rpc_backend.plugin_api import (
    ComputeError,
    DeviceInfo,
    Graph,
    HostDevice,
    RunnablePlan,
    Tensor,
    UnsupportedOpError,
)
from rpc_backend_reference.ops import KERNELS


class ReferenceDevice(HostDevice):
    """The processor of this machine through numpy, on the caller's thread."""

    def __init__(self) -> None:
        self.info = DeviceInfo(
            name="reference", description="numpy, the meaning of every operation", kind="cpu", is_host=True
        )

    def supports_op(self, tensor: Tensor) -> bool:
        kernel = KERNELS.get(tensor.op.name) if tensor.op else None
        return kernel is not None and kernel.supports(tensor)

    def compile(self, graph: Graph) -> ReferencePlan:
        for node in graph.nodes:
            if not self.supports_op(node):
                types = ", ".join(source.type.name for source in node.sources)
                raise UnsupportedOpError(f"device reference cannot run {node} of {types}")
        return ReferencePlan(graph)


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
