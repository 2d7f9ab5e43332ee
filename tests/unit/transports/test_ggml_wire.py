"""ggml-rpc as bytes: what is packed comes back, and counts that do not fit are refused."""

from __future__ import annotations

import struct

import pytest

from rpc_backend.errors import RemoteProtocolError
from rpc_transport_ggml import wire


def a_tensor(**changes) -> wire.TensorRecord:
    fields = {
        "id": 2**63 + 1,
        "type": 8,
        "buffer": 7,
        "ne": (64, 3, 2, 1),
        "nb": (34, 68, 204, 408),
        "op": 29,
        "op_params": bytes(range(64)),
        "flags": wire.FLAG_COMPUTE,
        "sources": (11, 12, 0, 0, 0, 0, 0, 0, 0, 0),
        "view_source": 13,
        "view_offset": 14,
        "data": 2**64 - 1,
        "raw_name": b"blk.0".ljust(64, b"\0"),
    }
    return wire.TensorRecord(**{**fields, **changes})


def test_a_tensor_has_296_bytes_and_comes_back():
    raw = wire.encode_tensor(a_tensor())
    assert len(raw) == wire.TENSOR_NBYTES == 296
    assert wire.decode_tensor(raw) == a_tensor()
    assert wire.decode_tensor(raw).name == "blk.0"


def test_its_fields_lie_where_the_other_side_puts_them():
    raw = wire.encode_tensor(a_tensor())
    assert struct.unpack_from("<QIQ", raw) == (2**63 + 1, 8, 7)
    assert struct.unpack_from("<I", raw, 52) == (29,)
    assert struct.unpack_from("<Q", raw, 124) == (11,)
    assert struct.unpack_from("<QQQ", raw, 204) == (13, 14, 2**64 - 1)
    assert raw[228:233] == b"blk.0"


def test_a_name_may_be_any_bytes():
    assert a_tensor(raw_name=b"\xff" * 64).name


def test_a_graph_comes_back():
    graph = wire.GraphRecord((1, 2), [a_tensor(id=1), a_tensor(id=2)])
    raw = memoryview(wire.encode_graph(3, graph))
    assert wire.graph_device(raw) == 3
    assert wire.decode_graph(raw) == graph


@pytest.mark.parametrize("nbytes", [0, 1, 7])
def test_a_graph_without_a_head(nbytes):
    with pytest.raises(RemoteProtocolError, match="no head"):
        wire.graph_device(memoryview(bytes(nbytes)))


@pytest.mark.parametrize("n_nodes", [2, 2**31, 2**32 - 1])
def test_more_nodes_than_bytes(n_nodes):
    raw = struct.pack("<III", 0, n_nodes, 0)
    with pytest.raises(RemoteProtocolError, match=f"cannot list {n_nodes} nodes"):
        wire.decode_graph(memoryview(raw))


@pytest.mark.parametrize("n_tensors", [0, 2, 2**32 - 1])
def test_another_count_of_tensors_than_bytes(n_tensors):
    raw = struct.pack("<III", 0, 0, n_tensors) + wire.encode_tensor(a_tensor())
    with pytest.raises(RemoteProtocolError, match=f"{n_tensors} tensors are announced"):
        wire.decode_graph(memoryview(raw))


def test_every_prefix_of_a_graph_is_refused():
    raw = memoryview(wire.encode_graph(0, wire.GraphRecord((1,), [a_tensor()])))
    for nbytes in range(8, len(raw)):
        with pytest.raises(RemoteProtocolError):
            wire.decode_graph(raw[:nbytes])


def test_a_command_that_is_not_there():
    assert wire.command_of(14) is wire.Code.HELLO
    for code in (18, 19, 255):
        with pytest.raises(RemoteProtocolError, match=f"no command {code}"):
            wire.command_of(code)


def test_sizes_are_checked():
    wire.check_size(wire.Code.FREE_BUFFER, 8, 8, 8)
    with pytest.raises(RemoteProtocolError, match=f"FREE_BUFFER has {2**63} bytes, not 8"):
        wire.check_size(wire.Code.FREE_BUFFER, 2**63, 8, 8)
