from __future__ import annotations

import pytest

from rpc_backend.errors import ComputeError
from rpc_backend.graph import Graph
from rpc_backend.interfaces import Memory
from rpc_backend.testing.devices import FailingDevice, NullDevice


def test_a_null_device_counts_its_memory():
    device = NullDevice(total_nbytes=100)
    buffer = device.alloc_buffer(30)
    assert device.memory() == Memory(70, 100)
    buffer.close()
    buffer.close()
    assert device.memory() == Memory(100, 100)


def test_a_failing_device_fails_on_the_runs_it_was_told():
    device = FailingDevice(NullDevice(), {2}, name="other")
    plan, stream = device.compile(Graph([])), device.create_stream()
    stream.compute(plan)
    with pytest.raises(ComputeError, match="graph 2 fails"):
        stream.compute(plan)
    stream.compute(plan)
    assert device.n_runs == 3
    assert device.inner.plans[0].n_runs == 2
    assert device.info.name == "other"
