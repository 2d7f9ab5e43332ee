"""Plans under construction: shared blocks, and waits between dependent rows."""

from __future__ import annotations

from rpc_backend.graph import Tensor, build
from rpc_backend.graph.element_types import F32
from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_backend_numba.arguments import Row, Shared, Span, word_of
from rpc_backend_numba.builder import PlanBuilder, place_blocks, waits


def row(reads: list[Span], writes: list[Span]) -> Row:
    return Row("kernel", 0, [], [], reads, writes)


def at(start: int, nbytes: int = 64) -> Span:
    return Span(start, nbytes)


def waits_of(*rows: Row) -> list[bool]:
    return waits(rows, lambda address: address if isinstance(address, int) else 10**6).tolist()


def test_rows_that_touch_nothing_in_common_do_not_wait() -> None:
    assert waits_of(row([at(0)], [at(100)]), row([at(0)], [at(200)]), row([], [at(300)])) == [False] * 3


def test_reading_a_result_waits() -> None:
    assert waits_of(row([], [at(0)]), row([at(63, 1)], [at(100)])) == [False, True]
    assert waits_of(row([], [at(0)]), row([at(64, 1)], [at(100)])) == [False, False]


def test_writing_over_a_result_or_a_source_waits() -> None:
    assert waits_of(row([], [at(0)]), row([], [at(32)])) == [False, True]
    assert waits_of(row([at(0)], [at(100)]), row([], [at(0)])) == [False, True]


def test_one_wait_serves_all_rows_before() -> None:
    rows = [row([], [at(0)]), row([], [at(100)]), row([at(0)], [at(200)]), row([at(100)], [at(300)])]

    assert waits_of(*rows) == [False, False, True, False]


def test_shared_blocks_count_as_memory() -> None:
    block = Span(Shared(0), 64)

    assert waits_of(row([], [block]), row([block], [at(0)])) == [False, True]


def test_blocks_in_use_together_lie_apart() -> None:
    first, second = Span(Shared(0), 100), Span(Shared(1), 100)
    offsets, total = place_blocks([row([], [first]), row([], [second]), row([first, second], [])], [100, 100])

    assert abs(offsets[0] - offsets[1]) >= 100
    assert total == 256


def test_a_block_takes_the_place_of_one_no_longer_read() -> None:
    blocks = [Span(Shared(number), 100) for number in range(3)]
    rows = [step for block in blocks for step in (row([], [block]), row([block], []))]

    assert place_blocks(rows, [100] * 3) == ([0, 0, 0], 128)


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
