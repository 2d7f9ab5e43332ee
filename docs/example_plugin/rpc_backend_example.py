"""A compute backend of three operations, in numpy: the worked example of docs/plugins.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rpc_backend import plugin_api as api


def as_array(tensor: api.Tensor) -> Any:
    """Return the tensor's memory as a numpy array; numpy counts axes from the outside, ggml from the inside."""
    return np.ndarray(tensor.ne[::-1], np.float32, api.host_bytes(tensor), strides=tensor.nb[::-1])


def mul_mat(a: Any, b: Any, out: Any) -> None:
    """Shapes: a [a3, a2, m, k], b [b3, b2, n, k], out [b3, b2, n, m]."""
    a = a.repeat(b.shape[0] // a.shape[0], axis=0).repeat(b.shape[1] // a.shape[1], axis=1)
    np.matmul(b, a.swapaxes(2, 3), out=out)


KERNELS: dict[str, Callable[[Any, Any, Any], Any]] = {"ADD": np.add, "MUL": np.multiply, "MUL_MAT": mul_mat}


class ExamplePlan(api.RunnablePlan):
    """Looks up kernels and memory once, so that `run` only calls."""

    def __init__(self, graph: api.Graph) -> None:
        self.graph = graph
        self._steps = [
            (KERNELS[node.op.name], [as_array(tensor) for tensor in (*node.sources, node)])
            for node in graph.nodes
            if node.op and node.op.moves_data
        ]

    def run(self) -> None:
        for kernel, arrays in self._steps:
            kernel(*arrays)


class ExampleDevice(api.HostDevice):
    """Memory of this process, computed on with numpy."""

    info = api.DeviceInfo("example", "numpy, three operations", "cpu", is_host=True)

    def supports_op(self, tensor: api.Tensor) -> bool:
        if tensor.op is None or not tensor.op.moves_data:
            return True  # a leaf, or another description of the same memory
        if any(part.type.name != "F32" for part in (tensor, *tensor.sources)):
            return False
        if tensor.op.name in ("ADD", "MUL"):  # numpy broadcasts extents of 1 only
            return all(have in (1, want) for have, want in zip(tensor.sources[1].ne, tensor.ne, strict=True))
        return tensor.op.name in KERNELS

    def compile(self, graph: api.Graph) -> ExamplePlan:
        for node in graph.nodes:
            if not self.supports_op(node):
                raise api.UnsupportedOpError(f"device example cannot run {node}")
        return ExamplePlan(graph)


def create(options: api.DeviceOptions) -> Sequence[api.Device]:
    if options.extra:
        raise api.ConfigError(f"backend example has no option {next(iter(options.extra))!r}")
    return [ExampleDevice()]


@api.hookimpl
def rpc_register_backends(register: Callable[[api.ComputeBackend], None]) -> None:
    register(api.ComputeBackend("example", lambda: api.Probe(True), create))
