"""Plans under construction: shared blocks, and when they are shared."""

from __future__ import annotations

from rpc_backend.graph import Tensor, build
from rpc_backend.graph.element_types import F32
from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_backend_numba.arguments import Shared, word_of
from rpc_backend_numba.builder import PlanBuilder


def placed(*tensors: Tensor) -> None:
    buffer = HostBuffer(NullDevice(), 256 * len(tensors))
    for number, tensor in enumerate(tensors):
        tensor.buffer, tensor.offset = buffer, 256 * number


def prepare(builder: PlanBuilder, source: Tensor) -> Shared:
    return builder.prepare("key", "inputs", 64, [source], lambda block: [block])


def test_what_is_prepared_once_is_shared() -> None:
    source, other = build.leaf(F32, (4,)), build.leaf(F32, (4,))
    placed(source, other)
    builder = PlanBuilder(8)

    assert prepare(builder, source) == prepare(builder, source)
    assert prepare(builder, source) != prepare(builder, other)
    assert len(builder.rows) == 2


def test_writing_over_a_source_ends_the_sharing() -> None:
    source, other = build.leaf(F32, (4,)), build.leaf(F32, (4,))
    placed(source, other)
    builder = PlanBuilder(8)
    first = prepare(builder, source)

    builder.row("copy", other, [source])
    assert prepare(builder, source) == first
    builder.row("copy", source, [other])
    assert prepare(builder, source) != first


def test_floats_travel_as_their_bits() -> None:
    assert word_of(7) == 7
    assert word_of(-0.0) == -(2**63)
    assert word_of(1.0) == 0x3FF0000000000000
