"""The free list of one compute buffer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rpc_backend.scheduler.plan.allocate import FreeList


def test_takes_the_smallest_hole_that_fits() -> None:
    free = FreeList(16)
    small_gap = [free.take(nbytes) for nbytes in (64, 16, 32, 16)]
    free.give(small_gap[0], 64)
    free.give(small_gap[2], 32)
    assert free.take(20) == small_gap[2]
    assert free.take(48) == small_gap[0]
    assert free.take(16) == 48
    assert free.nbytes == 128


def test_holes_join_and_the_last_one_grows() -> None:
    free = FreeList(64)
    offsets = [free.take(64) for _ in range(4)]
    for index in (1, 3, 2):
        free.give(offsets[index], 64)
    assert free.take(256) == 64
    assert free.nbytes == 320


def test_an_empty_tensor_still_has_a_place_of_its_own() -> None:
    free = FreeList(64)
    assert (free.take(0), free.take(0)) == (0, 64)


@given(
    st.sampled_from([1, 32, 256]),
    st.lists(st.one_of(st.integers(0, 2000), st.integers(-20, -1)), min_size=1, max_size=60),
)
def test_what_is_taken_never_overlaps(alignment: int, moves: list[int]) -> None:
    """A move of 0 or more takes that many bytes; a negative one gives back something held."""
    free = FreeList(alignment)
    held: list[tuple[int, int]] = []
    for move in moves:
        if move < 0 and held:
            free.give(*held.pop(move % len(held)))
        elif move >= 0:
            offset = free.take(move)
            assert offset % alignment == 0
            assert all(offset + move <= start or start + nbytes <= offset for start, nbytes in held)
            assert offset + move <= free.nbytes
            held.append((offset, move))
    for offset, nbytes in held:
        free.give(offset, nbytes)
    high_water = free.nbytes
    assert free.take(high_water) == 0
