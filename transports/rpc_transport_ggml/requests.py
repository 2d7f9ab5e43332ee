"""What each command of ggml-rpc does: one function per command.

Belongs here: commands as calls of the worker. Must not be here: reading requests and sending answers (`connection`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np

from rpc_backend.plugin_api import GraphError, LimitError, OutOfMemoryError, RemoteProtocolError, commands, records
from rpc_transport_ggml.places import Places, Region
from rpc_transport_ggml.steps import MAX_HELD_NBYTES, MAX_READ_NBYTES, HeldWrite, Read, Steps
from rpc_transport_ggml.stream import SocketStream
from rpc_transport_ggml.translate import Placed, Record, question_record, tensor_record
from rpc_transport_ggml.wire import (
    CAPABILITIES_NBYTES,
    MAX_GRAPH_NBYTES,
    SET_TENSOR_HEAD,
    SIZE,
    TENSOR_NBYTES,
    VERSION,
    Code,
    check_size,
    decode_tensor,
)
from rpc_transport_ggml.worker_session import WorkerSession

_LOG = logging.getLogger(__name__)
_MAX_TRANSLATED = 4096
_N_SOURCES = 10
_UNBOUNDED = (1 << 64) - 1

_TENSOR = f"{TENSOR_NBYTES}s"
_COUNT = Struct("<I")
_TWO_SIZES = Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of `nbytes`, which come in parts."""

    nbytes: int
    parts: Iterator[bytes | memoryview]


Answer = bytes | Reply | None
"""None where the protocol has no answer."""


class Client:
    """What the gateway knows of one client: its session, its buffers, its step under way."""

    def __init__(self, session: WorkerSession) -> None:
        self.session = session
        self.places = Places()
        self.steps = Steps(session, self.places)
        self._translated: dict[bytes, Placed] = {}

    def tensor(self, raw: bytes) -> Placed:
        """Return a tensor as the worker knows it; one that comes with every step is known already."""
        found = self._translated.get(raw)
        if found is None:
            if len(self._translated) >= _MAX_TRANSLATED:
                self._translated.clear()
            found = self._translated[raw] = tensor_record(decode_tensor(raw), self.places)
        return found

    def free(self, handle: int) -> Region:
        """Forget a buffer and all that may lie in it. Raises as `Places.remove`."""
        region = self.places.remove(handle)
        self.steps.forget_graphs()
        self._translated.clear()
        return region


@dataclass(frozen=True, slots=True)
class Handler:
    """The function of a command. With `form` it gets the unpacked request, else the stream and the request's size.

    What is under way is finished before, unless it `joins_step`.
    """

    code: Code
    form: Struct | None
    function: Callable[..., Answer]
    joins_step: bool

    def run(self, client: Client, *arguments: Any) -> Answer:
        """Run the command. Raises what goes wrong: errors of ours, `Stopped`, OSError."""
        if not self.joins_step:
            client.steps.finish()
        return self.function(client, *arguments)


HANDLERS: dict[int, Handler] = {}


def _handles(
    code: Code, form: str | None, *, joins_step: bool = False
) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    def mark(function: Callable[..., Answer]) -> Callable[..., Answer]:
        HANDLERS[code] = Handler(code, None if form is None else Struct(f"<{form}"), function, joins_step)
        return function

    return mark


def greeting() -> bytes:
    """Return the answer to HELLO: our version, and no abilities beyond plain TCP."""
    return bytes((*VERSION, 0)) + bytes(CAPABILITIES_NBYTES)


@_handles(Code.DEVICE_COUNT, "")
def device_count(client: Client) -> bytes:
    """Count the devices."""
    return _COUNT.pack(client.session.n_devices)


@_handles(Code.GET_ALIGNMENT, "I")
def get_alignment(client: Client, device: int) -> bytes:
    """Give the alignment of tensors."""
    return SIZE.pack(client.session.ask(commands.GET_ALIGNMENT, records.DeviceRef(device)).body.nbytes)


@_handles(Code.GET_MAX_SIZE, "I")
def get_max_size(client: Client, device: int) -> bytes:
    """Give the size of the largest buffer."""
    return SIZE.pack(client.session.ask(commands.GET_MAX_SIZE, records.DeviceRef(device)).body.nbytes)


@_handles(Code.GET_DEVICE_MEMORY, "I")
def get_device_memory(client: Client, device: int) -> bytes:
    """Give free and total memory, after all that was asked before: buffers are freed in the order of the stream."""
    client.session.ask(commands.SYNCHRONIZE, records.Empty(), stream=device)
    memory = client.session.ask(commands.GET_DEVICE_MEMORY, records.DeviceRef(device)).body
    return _TWO_SIZES.pack(memory.free_nbytes, memory.total_nbytes)


@_handles(Code.ALLOC_BUFFER, "IQ")
def alloc_buffer(client: Client, device: int, nbytes: int) -> bytes:
    """Allocate a buffer; handle 0 says that there is not enough memory.

    The client does not tell what it is for, so it is for weights: devices hide how those lie in memory from all else.
    """
    request = records.AllocBuffer(device, nbytes, "weights")
    try:
        handle = client.session.ask(commands.ALLOC_BUFFER, request, stream=device).body.handle
    except (OutOfMemoryError, LimitError) as error:
        _LOG.warning("refused a buffer: %s", error)
        return _TWO_SIZES.pack(0, 0)
    base = client.session.ask(commands.BUFFER_GET_BASE, records.BufferRef(handle)).body.base
    client.places.add(Region(handle, device, base, nbytes))
    return _TWO_SIZES.pack(handle, nbytes)


@_handles(Code.BUFFER_GET_BASE, "Q")
def buffer_get_base(client: Client, handle: int) -> bytes:
    """Give the first address of a buffer."""
    return SIZE.pack(client.places.find(handle).base)


@_handles(Code.FREE_BUFFER, "Q")
def free_buffer(client: Client, handle: int) -> None:
    """Free a buffer."""
    region = client.free(handle)
    client.session.tell(commands.FREE_BUFFER, records.BufferRef(handle), stream=region.device)


@_handles(Code.BUFFER_CLEAR, "QB")
def buffer_clear(client: Client, handle: int, value: int) -> None:
    """Set every byte of a buffer."""
    region = client.places.find(handle)
    client.session.tell(commands.BUFFER_CLEAR, records.BufferClear(handle, value), stream=region.device)


@_handles(Code.INIT_TENSOR, _TENSOR)
def init_tensor(client: Client, raw: bytes) -> None:
    """Let the worker check a tensor's place."""
    record, device, _ = client.tensor(raw)
    client.session.tell(commands.INIT_TENSOR, records.TensorRef(record), stream=device)


@_handles(Code.SET_TENSOR, None, joins_step=True)
def set_tensor(client: Client, stream: SocketStream, nbytes: int) -> None:
    """Write bytes of a tensor, in pieces as they come."""
    check_size(Code.SET_TENSOR, nbytes, SET_TENSOR_HEAD.size, _UNBOUNDED)
    raw, _, offset = SET_TENSOR_HEAD.unpack(stream.read(SET_TENSOR_HEAD.size))
    record, device, tensor_nbytes = client.tensor(raw)
    left = nbytes - SET_TENSOR_HEAD.size
    _check_room(client, record, offset, left)
    if offset == 0 and left == tensor_nbytes <= MAX_HELD_NBYTES:
        data = np.empty(left, np.uint8).data
        stream.read_into(data)
        client.steps.hold(device, HeldWrite(raw, record, data))
        return
    client.steps.finish()
    while True:
        data = np.empty(min(left, client.session.chunk_nbytes), np.uint8).data
        stream.read_into(data)
        request = records.TensorRange(record, offset, data.nbytes)
        client.session.tell(commands.SET_TENSOR, request, stream=device, payload=data)
        offset, left = offset + data.nbytes, left - data.nbytes
        if not left:
            return


@_handles(Code.SET_TENSOR_HASH, f"{_TENSOR}QQ")
def set_tensor_hash(client: Client, raw: bytes, offset: int, digest: int) -> bytes:
    """Let the worker put a whole tensor in its place that it knows by this name; else the client sends the bytes."""
    record, device, nbytes = client.tensor(raw)
    if offset:
        return bytes(1)
    request = records.TensorHash(record, 0, nbytes, digest.to_bytes(SIZE.size, "big"))
    return bytes((client.session.ask(commands.SET_TENSOR_HASH, request, stream=device).body.result,))


@_handles(Code.GET_TENSOR, f"{_TENSOR}QQ", joins_step=True)
def get_tensor(client: Client, raw: bytes, offset: int, nbytes: int) -> Reply:
    """Read bytes of a tensor, in pieces that one answer of the worker may have."""
    record, device, tensor_nbytes = client.tensor(raw)
    _check_room(client, record, offset, nbytes)
    if offset == 0 and nbytes == tensor_nbytes <= MAX_READ_NBYTES:
        found = client.steps.take_read(Read(raw, record, device))
        if found is not None:
            return Reply(nbytes, iter([found]))
    piece = client.session.hello.max_payload_nbytes

    def ask(start: int) -> int:
        request = records.TensorRange(record, start, min(piece, offset + nbytes - start))
        return client.session.begin(commands.GET_TENSOR, request, stream=device)

    def read(start: int, asked: int | None = None) -> memoryview:
        payload = client.session.wait(ask(start) if asked is None else asked, commands.GET_TENSOR).payload
        assert payload is not None, "the answer to GET_TENSOR has a payload"
        return payload

    client.steps.flush()
    asked = ask(offset)  # before the step is known to have run: it comes first at the worker too
    ran_late = client.steps.settle()
    first = read(offset, asked)  # what is wrong with the request shows here, before anything is answered
    if ran_late:
        first = read(offset)
    rest = (read(start) for start in range(offset + piece, offset + nbytes, piece))
    return Reply(nbytes, _chain(first, rest))


@_handles(Code.COPY_TENSOR, f"{_TENSOR}{_TENSOR}")
def copy_tensor(client: Client, raw_source: bytes, raw_target: bytes) -> bytes:
    """Copy a tensor, on a device or between two; all that was asked of either before comes first."""
    source, target = client.tensor(raw_source), client.tensor(raw_target)
    if source.device != target.device:
        client.session.ask(commands.SYNCHRONIZE, records.Empty(), stream=source.device)
    pair = records.TensorPair(source.record, target.record)
    answer = client.session.ask(commands.COPY_TENSOR, pair, stream=target.device)
    return bytes((answer.body.result,))


@_handles(Code.MEMSET_TENSOR, f"{_TENSOR}QQB")
def memset_tensor(client: Client, raw: bytes, offset: int, nbytes: int, value: int) -> None:
    """Set bytes of a tensor to one value."""
    record, device, _ = client.tensor(raw)
    client.session.tell(commands.MEMSET_TENSOR, records.TensorFill(record, offset, nbytes, value), stream=device)


@_handles(Code.GET_ALLOC_SIZE, f"I{_TENSOR}" + _TENSOR * _N_SOURCES)
def get_alloc_size(client: Client, device: int, raw: bytes, *raw_sources: bytes) -> bytes:
    """Give the bytes to reserve for a tensor."""
    question = question_record(decode_tensor(raw), [decode_tensor(source) for source in raw_sources])
    answer = client.session.ask(commands.GET_ALLOC_SIZE, records.OpQuery(device, [question]))
    return SIZE.pack(answer.body.nbytes[0])


@_handles(Code.GRAPH_COMPUTE, None, joins_step=True)
def graph_compute(client: Client, stream: SocketStream, nbytes: int) -> None:
    """Run a graph."""
    check_size(Code.GRAPH_COMPUTE, nbytes, 0, MAX_GRAPH_NBYTES)
    raw = np.empty(nbytes, np.uint8).data
    stream.read_into(raw)
    client.steps.compute(raw)


@_handles(Code.GRAPH_RECOMPUTE, "I", joins_step=True)
def graph_recompute(client: Client, device: int) -> None:
    """Run the last graph again."""
    client.steps.repeat(device)


@_handles(Code.HELLO, None)
def second_hello(client: Client, stream: SocketStream, nbytes: int) -> None:
    """Refuse: the first HELLO is taken before any other command."""
    raise RemoteProtocolError("HELLO is said once, at the start of a connection")


def _check_room(client: Client, record: Record, offset: int, nbytes: int) -> None:
    """Refuse a size that no buffer has before anything is read or allocated; the worker checks it exactly."""
    handle = record[8]
    if offset + nbytes > client.places.find(handle).nbytes:
        raise GraphError(f"{nbytes} bytes at {offset} of tensor {record[10]!r} are outside buffer {handle:#x}")


def _chain(first: memoryview, rest: Iterator[Any]) -> Iterator[memoryview]:
    yield first
    yield from rest
