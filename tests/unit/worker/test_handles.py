from __future__ import annotations

import itertools

import pytest

from rpc_backend.errors import HandleError
from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_backend.worker.handles import HandleTable, HeldBuffer


@pytest.fixture
def table() -> HandleTable:
    return HandleTable()


def add(table: HandleTable, session: bytes = b"A", device: int = 0, nbytes: int = 64) -> HeldBuffer:
    return table.add(session, device, HostBuffer(NullDevice(), nbytes))


def test_a_handle_finds_its_buffer(table):
    held = add(table)
    assert table.find(b"A", held.handle) is held


def test_handles_are_never_given_twice(table):
    first = add(table)
    table.remove(first)
    second = add(table)
    assert second.handle != first.handle
    with pytest.raises(HandleError, match=f"buffer {first.handle} was freed"):
        table.find(b"A", first.handle)


@pytest.mark.parametrize("handle", [0, -1, 2, 1 << 63])
def test_a_handle_that_was_never_given_is_unknown(table, handle):
    add(table)
    with pytest.raises(HandleError, match="never allocated"):
        table.find(b"A", handle)


def test_another_sessions_handle_is_refused_as_such(table):
    held = add(table, b"A")
    with pytest.raises(HandleError, match="belongs to another session"):
        table.find(b"B", held.handle)


def test_addresses_do_not_overlap(table):
    held = [add(table, nbytes=nbytes) for nbytes in (0, 1, 1 << 20, (1 << 16) - 1, 1 << 16)]
    spans = sorted((item.base, item.base + max(1, item.buffer.nbytes)) for item in held)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(spans))
    assert spans[0][0] > 0


def test_what_a_session_holds_on_a_device(table):
    mine = add(table, b"A", 0)
    add(table, b"A", 1)
    add(table, b"B", 0)
    assert table.of_session(b"A", 0) == [mine]
