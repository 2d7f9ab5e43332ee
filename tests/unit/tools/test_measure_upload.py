from __future__ import annotations

import mmap
import os
import sys

import numpy as np
import pytest

MIB = 1 << 20


def test_arms_take_turns(tool):
    order: list[str] = []
    measure = tool("measure_upload")
    arms = {name: lambda name=name: float(order.append(name) or len(order)) for name in "ab"}
    assert measure._in_turn(arms, 3) == {"a": [1, 4, 5], "b": [2, 3, 6]}
    assert order == list("abbaab")


def test_the_ratio_is_the_median_of_the_rounds(tool):
    assert tool("measure_upload")._ratio([1, 8, 3], [1, 2, 1]) == "3.00"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc of Linux")
@pytest.mark.parametrize("flags", [mmap.MAP_PRIVATE, mmap.MAP_SHARED])
def test_memory_counts_but_for_the_buffer_that_is_filled(tool, flags):
    own_nbytes, pid = tool("extra_memory").own_nbytes, os.getpid()
    before = own_nbytes(pid)
    memory = np.frombuffer(mmap.mmap(-1, 400 * MIB, flags=flags | mmap.MAP_ANONYMOUS), np.uint8)
    memory[: 100 * MIB] = 1
    assert 95 * MIB < own_nbytes(pid) - before < 110 * MIB
    assert own_nbytes(pid, 400 * MIB) - before < 20 * MIB


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc of Linux")
def test_memory_that_a_file_backs_does_not_count(tool, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(50 * MIB))
    own_nbytes, pid = tool("extra_memory").own_nbytes, os.getpid()
    before = own_nbytes(pid)
    assert np.memmap(path, np.uint8, "r").max() == 0
    assert own_nbytes(pid) - before < 10 * MIB
