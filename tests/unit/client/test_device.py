from __future__ import annotations

import pytest

from rpc_backend.errors import DeviceError, GraphError, LimitError, OutOfMemoryError, UnsupportedOpError
from rpc_backend.graph import Graph, build, element_type
from rpc_backend.interfaces import Memory

F32 = element_type("F32")


@pytest.fixture
def device(connection):
    return connection.devices()[0]


def graph_on(device, op=build.add):
    x = build.leaf(F32, [16])
    y = op(x, x)
    buffer = device.alloc_buffer(128)
    x.buffer, y.buffer, y.offset = buffer, buffer, 64
    return Graph.of(y)


def test_memory_counts_what_was_allocated_and_freed(device):
    buffer = device.alloc_buffer(1000)
    assert device.memory() == Memory((1 << 20) - 1000, 1 << 20)
    buffer.close()
    buffer.close()
    assert device.memory() == Memory(1 << 20, 1 << 20)


@pytest.mark.parametrize(
    ("nbytes", "error"),
    [((1 << 20) + 1, OutOfMemoryError), (-1, LimitError), (1 << 63, LimitError), ((1 << 64) - 1, LimitError)],
)
def test_an_allocation_that_cannot_be(device, nbytes, error):
    with pytest.raises(error, match=str(nbytes)) as caught:
        device.alloc_buffer(nbytes)
    assert caught.value.context.device == "zero"
    assert device.memory().free_nbytes == 1 << 20


def test_a_buffer_is_written_filled_and_read(device):
    buffer = device.alloc_buffer(100)
    buffer.fill(0, 100, 1)
    buffer.fill(10, 5, 2)
    buffer.write(20, memoryview(b"hello"))
    out = bytearray(30)
    buffer.read_into(0, memoryview(out))
    assert bytes(out) == b"\1" * 10 + b"\2" * 5 + b"\1" * 5 + b"hello" + b"\1" * 5


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 2), (90, 11), (101, 0), (1 << 64, 1)])
def test_a_range_outside_a_buffer_is_refused_here(device, offset, nbytes):
    buffer = device.alloc_buffer(100)
    data = memoryview(bytearray(nbytes))
    for access in (lambda: buffer.write(offset, data), lambda: buffer.read_into(offset, data)):
        with pytest.raises(GraphError, match="outside a buffer"):
            access()
    with pytest.raises(GraphError, match="outside a buffer"):
        buffer.fill(offset, nbytes, 0)


def test_a_closed_buffer_is_refused_here(device):
    buffer = device.alloc_buffer(100)
    buffer.close()
    with pytest.raises(DeviceError, match="closed"):
        buffer.write(0, memoryview(b"x"))


def test_compile_refuses_what_the_device_lacks(device):
    with pytest.raises(UnsupportedOpError, match="zero@inline does not run") as caught:
        device.compile(graph_on(device, build.sub))
    assert caught.value.context.op == "SUB"


def test_a_graph_never_carries_anothers_handle(worker, connection, device):
    for other in (connection.devices()[1], worker.connect().devices()[0]):
        with pytest.raises(GraphError, match="copy it to zero@inline"):
            device.compile(graph_on(other))
