"""Defaults of the Device and Buffer interfaces."""

from __future__ import annotations

import pytest

from rpc_backend.graph import Graph, build
from rpc_backend.graph.element_types import F32
from rpc_backend.interfaces import Buffer, Device, RunnablePlan
from rpc_backend.testing.devices import NullDevice


class _Abacus(Buffer):
    def write(self, offset, data):
        """Not needed here."""

    read_into = fill = write

    def close(self):
        """Not needed here."""


class _Plan(RunnablePlan):
    def __init__(self) -> None:
        self.graph = Graph([])

    def run(self) -> None:
        """Not needed here."""


def test_batched_questions_ask_one_by_one():
    device = NullDevice(refused_ops=("SCALE",))
    a = build.leaf(F32, (4, 3))
    tensors = [build.add(a, a), build.scale(a, 2.0), build.cont(a)]
    assert Device.supports_ops(device, tensors) == [True, False, True]
    assert Device.alloc_sizes(device, [a, build.leaf(F32, (5,))]) == [48, 20]
    assert Device.alloc_size(device, a) == a.nbytes


def test_a_buffer_declines_copies_by_default():
    assert _Abacus().copy_from(0, _Abacus(), 0, 4) is False


def test_a_plan_needs_no_closing():
    plan = _Plan()
    plan.close()
    plan.close()


@pytest.mark.parametrize("interface", [Device, Buffer, RunnablePlan])
def test_interfaces_cannot_be_made(interface):
    with pytest.raises(TypeError, match="abstract"):
        interface()
