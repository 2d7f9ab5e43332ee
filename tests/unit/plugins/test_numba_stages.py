"""When rows run: what depends on what, what threads share, and memory of blocks."""

from __future__ import annotations

import pytest

from rpc_backend_numba.arguments import Parts, Row, Shared, Span
from rpc_backend_numba.stages import place_blocks, stages_of


def row(reads: list[Span], writes: list[Span]) -> Row:
    return Row("kernel", 0, [], [], reads, writes)


def at(start: int, nbytes: int = 64, parts: Parts | None = None) -> Span:
    return Span(start, nbytes, parts)


def stages(*rows: Row, n_threads: int = 2) -> list[int]:
    return stages_of(rows, [64, 64, 64], n_threads)


def test_rows_that_touch_nothing_in_common_run_together() -> None:
    assert stages(row([at(0)], [at(100)]), row([at(0)], [at(200)]), row([], [at(300)])) == [0, 0, 0]


def test_reading_a_result_waits() -> None:
    assert stages(row([], [at(0)]), row([at(63, 1)], [at(100)])) == [0, 1]
    assert stages(row([], [at(0)]), row([at(64, 1)], [at(100)])) == [0, 0]


def test_writing_over_a_result_or_a_source_waits() -> None:
    assert stages(row([], [at(0)]), row([], [at(32)])) == [0, 1]
    assert stages(row([at(0)], [at(100)]), row([], [at(0)])) == [0, 1]


def test_a_row_runs_as_early_as_it_can() -> None:
    first = row([], [at(0)])
    rows = [first, row([at(0)], [at(100)]), row([at(100)], [at(200)]), row([at(0)], [at(300)]), row([], [at(400)])]

    assert stages(*rows) == [0, 1, 2, 1, 0]


def test_one_thread_takes_rows_as_they_come() -> None:
    assert stages(row([], [at(0)]), row([], [at(100)]), n_threads=1) == [0, 1]


def test_shared_blocks_count_as_memory() -> None:
    block, other = Span(Shared(0), 64), Span(Shared(1), 64)

    assert stages(row([], [block]), row([block], [at(0)]), row([other], [at(100)])) == [0, 1, 0]


@pytest.mark.parametrize("n_threads", [2, 3, 5])
def test_threads_need_not_wait_for_what_each_made_itself(n_threads: int) -> None:
    parts = Parts(8, 8)
    rows = [row([], [at(0, 64, parts)]), row([at(0, 64, parts)], [at(100)])]

    assert stages(*rows, n_threads=n_threads) == [0, 0]
    assert stages(rows[0], row([at(0)], [at(100)]), n_threads=n_threads) == [0, 1]


def test_parts_of_other_sizes_are_compared_thread_by_thread() -> None:
    written = row([], [at(0, 96, Parts(6, 16))])  # of two threads the first has 48 bytes

    assert stages(written, row([at(0, 96, Parts(12, 8))], [])) == [0, 0]
    assert stages(written, row([at(0, 96, Parts(3, 32))], [])) == [0, 1]  # here only 32
    assert stages(written, row([at(48, 48, Parts(2, 24))], [])) == [0, 1]  # all 48 are the second one's
    assert stages(written, row([at(0, 48, Parts(2, 48))], [])) == [0, 0]  # items behind the end are none


def test_a_part_may_depend_on_some_rows_and_wait_for_others() -> None:
    parts = Parts(4, 16)
    rows = [row([], [at(100)]), row([at(100)], [at(0, 64, parts)]), row([at(0, 64, parts)], [at(100)])]

    assert stages(*rows) == [0, 1, 2]  # the last writes what the second reads as a whole


def test_blocks_in_use_together_lie_apart() -> None:
    first, second = Span(Shared(0), 100), Span(Shared(1), 100)
    rows = [row([], [first]), row([], [second]), row([first, second], [])]
    offsets, total = place_blocks(rows, [0, 0, 1], [100, 100])

    assert abs(offsets[0] - offsets[1]) >= 100
    assert total == 256


def test_a_block_takes_the_place_of_one_no_longer_read() -> None:
    blocks = [Span(Shared(number), 100) for number in range(3)]
    rows = [step for block in blocks for step in (row([], [block]), row([block], []))]

    assert place_blocks(rows, [0, 1, 2, 3, 4, 5], [100] * 3) == ([0, 0, 0], 128)


def test_blocks_of_one_stage_lie_apart_even_if_one_is_written_after_the_other_was_read() -> None:
    first, second = Span(Shared(0), 100), Span(Shared(1), 100)
    rows = [row([], [first]), row([first], []), row([], [second])]

    assert place_blocks(rows, [0, 1, 1], [100, 100])[1] == 256
