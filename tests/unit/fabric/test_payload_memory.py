"""Memory that is used again once nobody holds the payload, and never while somebody does."""

import numpy as np

from rpc_backend.fabric.payload_memory import MOST_IDLE_NBYTES, POOLED_FROM_NBYTES, PayloadMemory

MIB = 1 << 20


def address(view):
    return np.frombuffer(view, np.uint8).ctypes.data


def test_a_dropped_payload_gives_its_memory_to_the_next():
    memory = PayloadMemory()
    first = memory.take(2 * MIB)
    where = address(first)
    del first
    assert address(memory.take(2 * MIB - 7)) == where


def test_a_payload_that_a_slice_still_shows_keeps_its_memory():
    memory = PayloadMemory()
    first = memory.take(2 * MIB)
    first[:] = bytes(2 * MIB)
    part = first[100:200]
    del first
    second = memory.take(2 * MIB)
    second[:] = b"\xff" * (2 * MIB)
    assert bytes(part) == bytes(100)


def test_sizes_are_exact_and_far_too_large_blocks_stay():
    memory = PayloadMemory()
    large = memory.take(32 * MIB)
    where = address(large)
    del large
    for nbytes in (0, 1, POOLED_FROM_NBYTES - 1, POOLED_FROM_NBYTES, MIB + 1):
        view = memory.take(nbytes)
        assert view.nbytes == nbytes
        assert not view.readonly
        assert nbytes == 0 or address(view) != where


def test_what_lies_unused_is_bounded():
    memory = PayloadMemory()
    held = [memory.take(8 * MIB) for _ in range(20)]
    held.clear()
    for nbytes in (MIB, 9 * MIB):  # too small and too large for the idle blocks
        memory.take(nbytes)
    assert sum(block.nbytes for block in memory._idle) <= MOST_IDLE_NBYTES
