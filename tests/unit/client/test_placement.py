from __future__ import annotations

import pytest

from rpc_backend.client.placement import buffer_on, encode_placed, encode_question
from rpc_backend.errors import DeviceError, GraphError
from rpc_backend.graph import Tensor, build, element_type
from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice

F32 = element_type("F32")


def placed(buffer: object, offset: int = 0) -> Tensor:
    tensor = build.leaf(F32, [16], "x")
    tensor.buffer, tensor.offset = buffer, offset
    return tensor


@pytest.fixture
def device(connection):
    return connection.devices()[0]


def test_a_view_is_encoded_as_a_leaf_at_its_absolute_place(device):
    buffer = device.alloc_buffer(1024)
    window = build.view(placed(buffer, 128), [4], offset_bytes=32)
    record = encode_placed(device, window)
    kind, ne, nb, op, params, sources, view, view_offs, handle, offset, _ = record
    assert (kind, ne, nb) == (F32.code, [4, 1, 1, 1], [4, 16, 16, 16])
    assert (op, params, sources, view, view_offs) == (-1, b"", [], -1, 0)
    assert (handle, offset) == (buffer.handle, 160)


def test_a_tensor_without_memory_is_refused(device):
    with pytest.raises(GraphError, match="has no memory"):
        buffer_on(device, build.leaf(F32, [16]))


def test_a_tensor_of_another_device_connection_or_process_is_refused(worker, connection, device):
    elsewhere = [
        connection.devices()[1].alloc_buffer(64),
        worker.connect().devices()[0].alloc_buffer(64),
        HostBuffer(NullDevice("here"), 64),
    ]
    for buffer in elsewhere:
        with pytest.raises(GraphError, match="copy it to zero@inline"):
            buffer_on(device, placed(buffer))


def test_a_closed_buffer_has_no_handle(device):
    buffer = device.alloc_buffer(64)
    buffer.close()
    with pytest.raises(DeviceError, match="closed"):
        encode_placed(device, placed(buffer))


def test_a_question_knows_no_places_and_no_names(device):
    a, b = placed(device.alloc_buffer(64)), build.leaf(F32, [16], "b")
    records, ids = encode_question(build.add(a, b))
    assert ids == [2]
    assert [(record[8], record[9], record[10]) for record in records] == [(0, 0, "")] * 3
