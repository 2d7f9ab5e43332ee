"""Buffers in this process's memory."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from rpc_backend.errors import DeviceError, GraphError, OutOfMemoryError
from rpc_backend.graph import build
from rpc_backend.graph.element_types import F32
from rpc_backend.interfaces import BufferUsage, HostBuffer, host_address, host_bytes
from rpc_backend.testing.devices import NullDevice


def _buffer(nbytes=32, memory=None) -> HostBuffer:
    return HostBuffer(NullDevice(), nbytes, BufferUsage.ANY, memory)


def _read(buffer: HostBuffer, offset: int, nbytes: int) -> bytes:
    out = bytearray(nbytes)
    buffer.read_into(offset, memoryview(out))
    return bytes(out)


def test_write_fill_and_read():
    buffer = _buffer()
    buffer.fill(0, 32, 7)
    buffer.write(4, memoryview(b"abcd"))
    assert _read(buffer, 2, 8) == b"\7\7abcd\7\7"
    buffer.fill(31, 1, 255)
    assert _read(buffer, 30, 2) == b"\7\xff"


def test_views_of_wider_elements_are_written_as_bytes():
    buffer = _buffer()
    buffer.write(8, memoryview(np.array([1.5, -2.0], "<f4")))
    assert np.frombuffer(_read(buffer, 8, 8), "<f4").tolist() == [1.5, -2.0]
    out = np.zeros(2, "<f4")
    buffer.read_into(8, memoryview(out))
    assert out.tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(-1, 2), (31, 2), (33, 0), (0, 33), (2**63, 1), (-(2**63), 1), (2**64 - 1, 2)]
)
def test_a_range_outside_is_refused(offset, nbytes):
    buffer = _buffer()
    buffer.fill(0, 32, 7)
    for act in (
        lambda: buffer.write(offset, memoryview(bytes(nbytes))),
        lambda: buffer.read_into(offset, memoryview(bytearray(nbytes))),
        lambda: buffer.fill(offset, nbytes, 1),
        lambda: buffer.copy_from(offset, _buffer(64), 0, nbytes),
        lambda: _buffer(64).copy_from(0, buffer, offset, nbytes),
    ):
        with pytest.raises(GraphError, match=f"{nbytes} bytes at {offset} are outside a buffer of 32"):
            act()
    assert _read(buffer, 0, 32) == b"\7" * 32


def test_a_negative_count_is_refused():
    with pytest.raises(GraphError, match="outside a buffer"):
        _buffer().fill(8, -4, 1)


def test_copy_between_and_within_buffers():
    source, target = _buffer(), _buffer()
    source.write(0, memoryview(bytes(range(32))))
    assert target.copy_from(1, source, 4, 3)
    assert _read(target, 0, 5) == b"\0\4\5\6\0"
    assert source.copy_from(2, source, 0, 6)
    assert _read(source, 0, 9) == bytes([0, 1, 0, 1, 2, 3, 4, 5, 8])


def test_a_closed_buffer_is_an_error_and_closing_twice_is_not():
    buffer = _buffer()
    buffer.close()
    buffer.close()
    for act in (
        lambda: buffer.write(0, memoryview(b"a")),
        lambda: buffer.read_into(0, memoryview(bytearray(1))),
        lambda: buffer.fill(0, 1, 1),
        lambda: buffer.address,
    ):
        with pytest.raises(DeviceError, match="closed"):
            act()


def test_memory_of_the_caller_is_used_in_place_and_may_be_read_only():
    memory = np.arange(16, dtype=np.uint8)
    buffer = _buffer(16, memory)
    buffer.write(0, memoryview(b"z"))
    assert memory[0] == ord("z")
    memory.flags.writeable = False
    assert _read(buffer, 0, 2) == b"z\1"
    for act in (
        lambda: buffer.write(0, memoryview(b"a")),
        lambda: buffer.fill(0, 1, 0),
        lambda: buffer.copy_from(0, _buffer(), 0, 4),
    ):
        with pytest.raises(DeviceError, match="read-only"):
            act()


def test_more_than_there_can_be_is_out_of_memory():
    for nbytes in (2**62, 2**63, 2**64):
        with pytest.raises(OutOfMemoryError, match=f"cannot allocate {nbytes} bytes"):
            _buffer(nbytes)


def test_an_empty_buffer():
    buffer = _buffer(0)
    buffer.fill(0, 0, 1)
    assert _read(buffer, 0, 0) == b""
    with pytest.raises(GraphError):
        buffer.fill(0, 1, 1)


def test_bytes_and_address_of_a_placed_tensor():
    buffer = _buffer(64)
    buffer.write(0, memoryview(bytes(range(64))))
    tensor = build.leaf(F32, (4, 3))
    tensor.buffer, tensor.offset = buffer, 8
    row = build.view(tensor, (4,), offset_bytes=16)
    assert bytes(host_bytes(tensor)) == bytes(range(8, 56))
    assert bytes(host_bytes(row)) == bytes(range(24, 40))
    assert host_address(row) == buffer.address + 24
    assert ctypes.string_at(host_address(row), 2) == b"\x18\x19"


def test_a_tensor_that_is_not_in_host_memory_is_refused():
    tensor = build.leaf(F32, (4,), "lost")
    for give in (host_bytes, host_address):
        with pytest.raises(GraphError, match=r"lost .* is not placed in host memory"):
            give(tensor)
    tensor.buffer, tensor.offset = _buffer(16), 4
    with pytest.raises(GraphError, match="outside a buffer"):
        host_bytes(tensor)
