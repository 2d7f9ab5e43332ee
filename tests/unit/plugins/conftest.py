"""Runs one operation of the reference backend on numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from rpc_backend.graph import Graph, Tensor, build, check_graph
from rpc_backend.graph.element_types import F16, F32, I32, I64
from rpc_backend_reference import arrays
from rpc_backend_reference.device import ReferenceDevice

_KINDS = {"float32": F32, "float16": F16, "int32": I32, "int64": I64}


@pytest.fixture
def compute() -> Callable[..., np.ndarray]:
    """Returns `compute(make, *inputs)`: the values of `make(*leaves)`, axes in numpy's order.

    Inputs are arrays, or placed tensors; leading axes of 1 are left out of the result.
    """
    device = ReferenceDevice()

    def run(make: Callable[..., Tensor], *inputs: np.ndarray | Sequence[float] | Tensor) -> np.ndarray:
        leaves = [value if isinstance(value, Tensor) else _leaf(device, np.asarray(value)) for value in inputs]
        output = make(*leaves)
        graph = Graph.of(output)
        for tensor in graph.tensors():
            if tensor.view_src is None and tensor.buffer is None:
                tensor.buffer = device.alloc_buffer(tensor.nbytes)
        check_graph(graph)
        device.compile(graph).run()
        found = arrays.cells(output) if output.type in (I32, I64) else arrays.floats(output)
        return found.squeeze(
            axis=tuple(axis for axis in range(3) if not any(size > 1 for size in found.shape[: axis + 1]))
        )

    return run


def _leaf(device: ReferenceDevice, values: np.ndarray) -> Tensor:
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    tensor = build.leaf(_KINDS[values.dtype.name], values.shape[::-1])
    tensor.buffer = device.alloc_buffer(tensor.nbytes)
    tensor.buffer.write(0, memoryview(values.tobytes()))
    return tensor
