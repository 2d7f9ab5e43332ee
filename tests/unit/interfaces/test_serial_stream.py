"""The stream that does each thing at once."""

from __future__ import annotations

import numpy as np
import pytest

from rpc_backend.errors import GraphError
from rpc_backend.graph import Graph, Tensor, build
from rpc_backend.graph.element_types import F16, F32
from rpc_backend.interfaces import Plan, SerialStream
from rpc_backend.testing.devices import NullDevice


class _ForeignPlan(Plan):
    def __init__(self) -> None:
        self.graph = Graph([])


@pytest.fixture
def device():
    return NullDevice()


@pytest.fixture
def stream(device):
    return SerialStream(device)


def _placed(device, tensor: Tensor) -> Tensor:
    tensor.buffer = device.alloc_buffer(tensor.nbytes)
    return tensor


def _get(stream, tensor, count, offset=0):
    out = np.zeros(count, "<f4")
    stream.get_tensor(tensor, out.data, offset)
    return out.tolist()


def test_set_and_get_whole_and_in_part(device, stream):
    tensor = _placed(device, build.leaf(F32, (4, 2)))
    stream.set_tensor(tensor, np.arange(8, dtype="<f4").data)
    stream.set_tensor(tensor, np.array([50, 60], "<f4").data, 20)
    stream.synchronize()
    assert _get(stream, tensor, 8) == [0, 1, 2, 3, 4, 50, 60, 7]
    assert _get(stream, tensor, 2, 16) == [4, 50]


def test_a_view_is_written_in_its_source(device, stream):
    tensor = _placed(device, build.leaf(F32, (4, 2)))
    stream.set_tensor(build.view(tensor, (2,), offset_bytes=8), np.array([8, 9], "<f4").data)
    assert _get(stream, tensor, 4) == [0, 0, 8, 9]


@pytest.mark.parametrize(("count", "offset"), [(9, 0), (1, 32), (1, -4), (2, 28), (1, 2**63)])
def test_a_range_outside_the_tensor_is_refused(device, stream, count, offset):
    tensor = build.leaf(F32, (4, 2))
    tensor.buffer = device.alloc_buffer(1024)
    with pytest.raises(GraphError, match="are outside <leaf"):
        stream.set_tensor(tensor, np.zeros(count, "<f4").data, offset)
    with pytest.raises(GraphError, match="are outside <leaf"):
        stream.get_tensor(tensor, np.zeros(count, "<f4").data, offset)


def test_a_tensor_without_memory_is_refused(stream):
    with pytest.raises(GraphError, match="has no memory"):
        stream.set_tensor(build.leaf(F32, (4,)), np.zeros(4, "<f4").data)


def test_copies_between_tensors_of_one_layout_only(device, stream):
    a, b = (_placed(device, build.leaf(F32, (4,))) for _ in range(2))
    stream.set_tensor(a, np.arange(4, dtype="<f4").data)
    assert stream.copy_tensor(a, b)
    assert _get(stream, b, 4) == [0, 1, 2, 3]
    assert not stream.copy_tensor(a, _placed(device, build.leaf(F16, (4,))))
    assert not stream.copy_tensor(a, _placed(device, build.leaf(F32, (2, 2))))
    assert not stream.copy_tensor(a, _placed(device, Tensor(F32, (4,), nb=(8, 32, 32, 32))))


def test_a_plan_is_run_and_a_foreign_one_refused(device, stream):
    plan = device.compile(Graph([]))
    stream.compute(plan)
    assert plan.n_runs == 1
    with pytest.raises(GraphError, match="another kind of device"):
        stream.compute(_ForeignPlan())
