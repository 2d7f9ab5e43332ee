"""What a device must be able to do before a graph is compiled for it.

Belongs here: the check of its operations. Must not be here: the checks that hold for every device (`tensors`).
"""

from __future__ import annotations

from rpc_backend.errors import ErrorContext, UnsupportedOpError
from rpc_backend.graph import Graph
from rpc_backend.interfaces import Device


def check_supported(device: Device, graph: Graph) -> None:
    """Check that a device runs every node.

    Raises:
        UnsupportedOpError: naming the first that it does not run.
    """
    for node, supported in zip(graph.nodes, device.supports_ops(graph.nodes), strict=True):
        if not supported:
            name = node.op.name if node.op else ""
            kinds = ", ".join(f"{source.type.name} {list(source.ne)}" for source in node.sources)
            raise UnsupportedOpError(
                f"device {device.info.name} does not run {node} of {kinds}",
                context=ErrorContext(device=device.info.name, op=name),
            )
