"""Pages that are there before they are written."""

from __future__ import annotations

import mmap
import resource
import sys

import numpy as np
import pytest

from rpc_backend.interfaces.fresh_memory import touch_from_the_end

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the call is one of Linux")
MIB = 1 << 20


def mapped(nbytes: int) -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.parametrize("nbytes", [64 * MIB, 65 * MIB + 5])
def test_pages_are_there_before_they_are_written(nbytes):
    memory = mapped(nbytes)
    threads = touch_from_the_end(memory)
    assert threads
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    before = faults()
    memory[:: mmap.PAGESIZE] = 1
    assert faults() - before < 1000  # of 16384 and more
    assert not memory[1 :: mmap.PAGESIZE].any()


def test_little_memory_is_left_alone():
    assert touch_from_the_end(mapped(MIB)) == []


def test_the_threads_end_when_the_memory_is_given_back():
    threads = touch_from_the_end(mapped(512 * MIB))
    for thread in threads:
        thread.join(10)
    assert threads
    assert not any(thread.is_alive() for thread in threads)
