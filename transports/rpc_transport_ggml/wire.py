"""ggml-rpc as bytes: numbers, sizes and forms of its messages.

Belongs here: packing and unpacking, and whether a message has a form at all. Must not be here: what tensors and
graphs mean (`translate`), sockets (`stream`).

Source: llama.cpp's `ggml-rpc`, protocol 7.0. A request is `command u8, size u64, payload`, an answer `size u64,
payload`; all numbers are little-endian, all structures packed.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from rpc_backend.plugin_api import RemoteProtocolError

VERSION = (7, 0, 0)
CAPABILITIES_NBYTES = 24
MAX_TENSORS = 1 << 15
"""Tensors and nodes that one graph may list; the largest models known need a third of it."""

HEAD = Struct("<BQ")
SIZE = Struct("<Q")
_TENSOR = Struct("<QIQ4I4II64si10QQQQ64si")
_GRAPH_HEAD = Struct("<II")
_COUNT = Struct("<I")

TENSOR_NBYTES = _TENSOR.size
SET_TENSOR_HEAD = Struct(f"<{TENSOR_NBYTES}sBQ")
MAX_GRAPH_NBYTES = _GRAPH_HEAD.size + _COUNT.size + MAX_TENSORS * (SIZE.size + TENSOR_NBYTES)

_I8 = 24
FLAG_COMPUTE = 16
"""Flag of a node that is to be computed; others only stand in the list."""


class Code(IntEnum):
    """The commands."""

    ALLOC_BUFFER = 0
    GET_ALIGNMENT = 1
    GET_MAX_SIZE = 2
    BUFFER_GET_BASE = 3
    FREE_BUFFER = 4
    BUFFER_CLEAR = 5
    SET_TENSOR = 6
    SET_TENSOR_HASH = 7
    GET_TENSOR = 8
    COPY_TENSOR = 9
    GRAPH_COMPUTE = 10
    GET_DEVICE_MEMORY = 11
    INIT_TENSOR = 12
    GET_ALLOC_SIZE = 13
    HELLO = 14
    DEVICE_COUNT = 15
    GRAPH_RECOMPUTE = 16
    MEMSET_TENSOR = 17


Four = tuple[int, int, int, int]


class TensorRecord(NamedTuple):
    """A tensor as the other side describes it. `id`, `sources` and `view_source` are keys of its own, 0 is none.

    `buffer` is a handle that the server gave, and `data` an address in the space that the server invented.
    """

    id: int
    type: int
    buffer: int
    ne: Four
    nb: Four
    op: int
    op_params: bytes
    flags: int
    sources: tuple[int, ...]
    view_source: int
    view_offset: int
    data: int
    raw_name: bytes

    @property
    def name(self) -> str:
        return self.raw_name.split(b"\0", 1)[0].decode(errors="replace")


class GraphRecord(NamedTuple):
    """A graph as the other side describes it: ids of nodes in order, and all tensors they mention."""

    node_ids: tuple[int, ...]
    tensors: list[TensorRecord]


def bytes_record(handle: int, address: int, nbytes: int) -> TensorRecord:
    """Return a row of bytes at an address of a buffer: for whatever lies there."""
    nb = (1, nbytes, nbytes, nbytes)
    return TensorRecord(1, _I8, handle, (nbytes, 1, 1, 1), nb, 0, bytes(64), 0, (), 0, 0, address, b"bytes")


def command_of(code: int) -> Code:
    """Return a command. Raises RemoteProtocolError: no such number."""
    try:
        return Code(code)
    except ValueError as error:
        raise RemoteProtocolError(f"ggml-rpc {VERSION[0]}.{VERSION[1]} has no command {code}") from error


def check_size(code: Code, nbytes: int, low: int, high: int) -> None:
    """Check how long the payload of a request is. Raises RemoteProtocolError: outside `low` to `high`."""
    if not low <= nbytes <= high:
        wanted = f"{low}" if low == high else f"{low} to {high}"
        raise RemoteProtocolError(f"a request {code.name} has {nbytes} bytes, not {wanted}")


def decode_tensor(raw: bytes | memoryview) -> TensorRecord:
    """Return the record of 296 bytes."""
    return _record(_TENSOR.unpack(raw))


def encode_tensor(record: TensorRecord) -> bytes:
    """Return the 296 bytes of a record."""
    fields = (*record[:3], *record.ne, *record.nb, record.op, record.op_params, record.flags)
    sources = (*record.sources, *(0,) * (10 - len(record.sources)))
    return _TENSOR.pack(*fields, *sources, *record[9:13], 0)


def graph_device(raw: memoryview) -> int:
    """Return the device that a graph is for. Raises RemoteProtocolError: too short to say."""
    if raw.nbytes < _GRAPH_HEAD.size:
        raise RemoteProtocolError(f"a graph of {raw.nbytes} bytes has no head")
    return _GRAPH_HEAD.unpack_from(raw)[0]


def decode_graph(raw: memoryview) -> GraphRecord:
    """Return a graph that has been checked by `graph_device`. Raises RemoteProtocolError: counts and bytes disagree."""
    _, n_nodes = _GRAPH_HEAD.unpack_from(raw)
    start = _GRAPH_HEAD.size + n_nodes * SIZE.size
    if n_nodes > MAX_TENSORS or start + _COUNT.size > raw.nbytes:
        raise RemoteProtocolError(f"a graph of {raw.nbytes} bytes cannot list {n_nodes} nodes")
    (n_tensors,) = _COUNT.unpack_from(raw, start)
    records = raw[start + _COUNT.size :]
    if n_tensors > MAX_TENSORS or records.nbytes != n_tensors * TENSOR_NBYTES:
        raise RemoteProtocolError(f"{n_tensors} tensors are announced in {records.nbytes} bytes of a graph")
    node_ids = Struct(f"<{n_nodes}Q").unpack_from(raw, _GRAPH_HEAD.size)
    return GraphRecord(node_ids, [_record(fields) for fields in _TENSOR.iter_unpack(records)])


def encode_graph(device: int, graph: GraphRecord) -> bytes:
    """Return the bytes of a graph."""
    head = _GRAPH_HEAD.pack(device, len(graph.node_ids)) + Struct(f"<{len(graph.node_ids)}Q").pack(*graph.node_ids)
    return head + _COUNT.pack(len(graph.tensors)) + b"".join(map(encode_tensor, graph.tensors))


def _record(fields: tuple) -> TensorRecord:
    packed = (*fields[:3], fields[3:7], fields[7:11], *fields[11:14], fields[14:24], *fields[24:28])
    return TensorRecord._make(packed)
