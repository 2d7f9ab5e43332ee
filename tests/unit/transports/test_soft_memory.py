"""Registered memory of the software model."""

from __future__ import annotations

import errno
import mmap
import os

import numpy as np
import pytest

from rpc_transport_rdma.soft import SGE, SoftVerbs, VerbsError
from rpc_transport_rdma.soft.memory import (
    LockedPages,
    MappedMemory,
    RegionTable,
    SharedMemory,
    copy_in,
    copy_out,
    pages_nbytes,
)
from rpc_transport_rdma.verbs import AccessFlags

PAGE = mmap.PAGESIZE


def buffer(nbytes: int) -> tuple[np.ndarray, int]:
    memory = np.zeros(nbytes, np.uint8)
    return memory, int(memory.ctypes.data)


@pytest.mark.parametrize(
    ("addr", "nbytes", "pages"),
    [(0, 1, 1), (0, PAGE, 1), (0, PAGE + 1, 2), (PAGE - 1, 1, 1), (PAGE - 1, 2, 2), (1, PAGE, 2)],
)
def test_every_page_that_is_touched_counts(addr: int, nbytes: int, pages: int) -> None:
    assert pages_nbytes(addr, nbytes) == pages * PAGE


def test_the_limit_counts_all_regions() -> None:
    locked = LockedPages(3 * PAGE)
    locked.take(1, 2 * PAGE)
    with pytest.raises(VerbsError) as refused:
        locked.take(2, 2 * PAGE)
    assert refused.value.errno == errno.ENOMEM
    locked.take(2, PAGE)
    locked.give_back(1)
    locked.take(3, 2 * PAGE)


def test_a_piece_is_found_only_where_it_may_be_accessed() -> None:
    table = RegionTable(LockedPages(None))
    _, addr = buffer(100)
    region = table.add(addr, 100, 1, AccessFlags.LOCAL_READ, None)
    whole = SGE(addr, 100, lkey=region.lkey)
    assert table.find(whole, 1, writing=False) is region
    assert table.find(whole, 1, writing=True) is None, "read only"
    assert table.find(whole, 2, writing=False) is None, "another domain"
    assert table.find(SGE(addr, 100, lkey=region.lkey ^ 1), 1, writing=False) is None, "another key"
    assert table.find(SGE(addr + 1, 100, lkey=region.lkey), 1, writing=False) is None, "past its end"
    assert table.find(SGE(addr - 1, 1, lkey=region.lkey), 1, writing=False) is None, "before its start"
    table.remove(region)
    assert table.find(whole, 1, writing=False) is None


def test_a_region_that_was_removed_is_not_touched() -> None:
    table = RegionTable(LockedPages(None))
    (ours, addr), (other, source) = buffer(10), buffer(10)
    region = table.add(addr, 10, 1, AccessFlags.LOCAL_WRITE, None)
    other[:] = 5
    assert copy_in(region, addr, source, 4)
    assert ours.tolist() == [5] * 4 + [0] * 6
    ours[9] = 8
    assert copy_out(region, addr + 9, source, 1)
    assert other[0] == 8
    table.remove(region)
    assert not copy_in(region, addr, source, 10)
    assert not copy_out(region, addr, source, 10)
    assert ours[5] == 0


def test_shared_memory_is_seen_by_who_maps_it() -> None:
    memory = SharedMemory(2 * PAGE)
    mapped = MappedMemory(memory.fd, 2 * PAGE)
    memory[PAGE : PAGE + 3] = b"abc"
    region = RegionTable(LockedPages(None)).add(memory.address, 2 * PAGE, 1, AccessFlags.LOCAL_WRITE, None)
    assert copy_in(region, memory.address, mapped.address + PAGE, 3)
    assert memory[:3] == b"abc"


def test_memory_that_may_change_its_size_is_not_mapped() -> None:
    descriptor = os.memfd_create("open", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, PAGE)
    with pytest.raises(ValueError, match="may not be mapped"):
        MappedMemory(descriptor, PAGE)
    os.close(descriptor)
    memory = SharedMemory(PAGE)
    for nbytes in (0, PAGE + 1):
        with pytest.raises(ValueError, match="may not be mapped"):
            MappedMemory(memory.fd, nbytes)
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fd, 0)


def test_allocated_memory_is_aligned_and_its_file_goes_with_it() -> None:
    memory = SoftVerbs().alloc(PAGE + 1)
    assert memory.address % PAGE == 0
    assert len(memory) == PAGE + 1
    descriptor = memory.fd
    os.fstat(descriptor)
    del memory
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
