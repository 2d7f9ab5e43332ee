"""Large pages: they come or they do not, and the bytes stay."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import pytest

from rpc_backend_numba.large_pages import SmallPages, make_large_pages


def filled(nbytes: int) -> np.ndarray:
    memory = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    memory[:] = np.arange(nbytes) % 251
    return memory


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the call")
@pytest.mark.parametrize(("start", "end"), [(0, 40 << 20), (5, (9 << 20) + 3)])
def test_the_content_stays(start: int, end: int) -> None:
    memory = filled(40 << 20)
    thread = make_large_pages(memory, start, end)

    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()
    np.testing.assert_array_equal(memory, np.arange(memory.nbytes) % 251)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the call")
def test_memory_may_go_meanwhile() -> None:
    thread = make_large_pages(filled(40 << 20), 0, 40 << 20)

    assert thread is not None
    thread.join(30)
    assert not thread.is_alive()


def test_memory_without_a_whole_large_page_is_left_alone() -> None:
    assert make_large_pages(filled(8 << 20), 4096, 8192) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the call")
def test_they_come_after_the_third_run_and_once() -> None:
    memory, gone = filled(8 << 20), filled(8 << 20)
    small = SmallPages()
    assert small.count_run() == []
    small.add(memory, 0, 8 << 20)
    small.add(gone, 0, 8 << 20)
    del gone
    assert small.count_run() == small.count_run() == []
    (thread,) = small.count_run()
    thread.join(30)
    assert not thread.is_alive()
    assert [small.count_run() for _ in range(4)] == [[]] * 4
    np.testing.assert_array_equal(memory, np.arange(memory.nbytes) % 251)


def test_other_systems_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    assert make_large_pages(filled(8 << 20), 0, 8 << 20) is None
