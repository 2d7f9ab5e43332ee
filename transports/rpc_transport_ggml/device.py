"""A device of a ggml-rpc server as a device of this process.

Belongs here: Device, Buffer, Plan and Stream over one connection. Must not be here: the connection (`server`), the
form of graphs (`outgoing`).

Its stream does one thing after the other and waits; whoever wants several devices to work at the same time queues it.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable

from rpc_backend.plugin_api import (
    Buffer,
    BufferUsage,
    Device,
    DeviceError,
    DeviceInfo,
    EndpointError,
    EndpointParts,
    Graph,
    GraphError,
    Memory,
    OutOfMemoryError,
    ProviderOptions,
    RunnablePlan,
    SerialStream,
    Stream,
    Tensor,
    UnsupportedOpError,
)
from rpc_transport_ggml.outgoing import graph_of, question_of, tensor_of
from rpc_transport_ggml.server import ServerConnection
from rpc_transport_ggml.wire import SIZE, Code, bytes_record, encode_graph, encode_tensor

_DEVICE = struct.Struct("<I")
_ALLOC = struct.Struct("<IQ")
_TWO_SIZES = struct.Struct("<QQ")
_SET_TAIL = struct.Struct("<BQ")
_FILL_TAIL = struct.Struct("<QQB")
_PIECE_NBYTES = 1 << 30
_LARGEST_NBYTES = 1 << 62
_PADDED_ROW = 512
_MAY_NEED_MORE = {"FLASH_ATTN_EXT", "MUL_MAT", "MUL_MAT_ID", "CUMSUM", "ARGSORT"}
_UNORDERED = {"TOP_K"}  # ggml promises no order of its results, our meaning does


def open_devices(endpoint: EndpointParts, options: ProviderOptions) -> list[Device]:
    """Connect to a server and return its devices, which share the connection.

    Raises:
        EndpointError: no host and port.
        ConnectError: nobody is there, or nobody that can be used.
    """
    if not endpoint.host:
        raise EndpointError(f"a ggml-rpc server is at ggml://host:port, not at {endpoint}")
    connection = ServerConnection(endpoint, options)
    try:
        return [GgmlDevice(connection, index) for index in range(connection.n_devices)]
    except BaseException:
        connection.close()
        raise


class GgmlDevice(Device):
    """One device of a server.

    The server cannot be asked which operations it has: as llama.cpp does, this side believes that it has all.
    """

    def __init__(self, connection: ServerConnection, index: int) -> None:
        """Ask what the device is. Raises WorkerLostError."""
        self.connection = connection
        self.index = index
        self._sizes: dict[Hashable, int] = {}
        self._last: tuple[GgmlPlan, int] | None = None
        place = connection.name.partition("://")[2]
        self.info = DeviceInfo(
            name=f"ggml{index}@{place}",
            description=f"device {index} of the ggml-rpc server at {place}",
            kind="accelerator",
            alignment=self._ask_size(Code.GET_ALIGNMENT),
            max_buffer_nbytes=min(self._ask_size(Code.GET_MAX_SIZE), _LARGEST_NBYTES),
        )

    def memory(self) -> Memory:
        answer = self.connection.ask(Code.GET_DEVICE_MEMORY, [_DEVICE.pack(self.index)], _TWO_SIZES.size)
        return Memory(*_TWO_SIZES.unpack(answer))

    def alloc_buffer(self, nbytes: int, usage: BufferUsage = BufferUsage.ANY) -> GgmlBuffer:
        request = _ALLOC.pack(self.index, nbytes)
        handle, _ = _TWO_SIZES.unpack(self.connection.ask(Code.ALLOC_BUFFER, [request], _TWO_SIZES.size))
        if not handle:
            free = self.memory().free_nbytes
            raise OutOfMemoryError(f"cannot allocate {nbytes} bytes on device {self.info.name}, {free} are free")
        (base,) = SIZE.unpack(self.connection.ask(Code.BUFFER_GET_BASE, [SIZE.pack(handle)], SIZE.size))
        return GgmlBuffer(self, nbytes, usage, handle, base)

    def supports_op(self, tensor: Tensor) -> bool:
        return tensor.op is not None and tensor.op.name not in _UNORDERED

    def compile(self, graph: Graph) -> GgmlPlan:
        for node in graph.nodes:
            if not self.supports_op(node):
                raise UnsupportedOpError(f"device {self.info.name} does not run {node}")
        return GgmlPlan(self, graph)

    def alloc_size(self, tensor: Tensor) -> int:
        op = tensor.op.name if tensor.op is not None else ""
        if op not in _MAY_NEED_MORE and not _is_padded(tensor):
            return tensor.nbytes
        key = (op, tensor.op_params, *((one.type, one.ne, one.nb) for one in (tensor, *tensor.sources)))
        size = self._sizes.get(key)
        if size is None:
            parts = [_DEVICE.pack(self.index), *map(encode_tensor, question_of(tensor))]
            (size,) = SIZE.unpack(self.connection.ask(Code.GET_ALLOC_SIZE, [b"".join(parts)], SIZE.size))
            self._sizes[key] = size
        return max(size, tensor.nbytes)

    def create_stream(self) -> Stream:
        return GgmlStream(self)

    def run(self, plan: GgmlPlan) -> None:
        """Have a plan computed; the last one is repeated by its name, unless a buffer was freed since."""
        with self.connection.lock:
            this = (plan, self.connection.n_frees)
            if self._last == this:
                self.connection.tell(Code.GRAPH_RECOMPUTE, [_DEVICE.pack(self.index)])
            else:
                self.connection.tell(Code.GRAPH_COMPUTE, [plan.raw])
                self._last = this

    def close(self) -> None:
        """Hang up: the server then frees what this side holds, for all of its devices."""
        self.connection.close()

    def _ask_size(self, code: Code) -> int:
        return SIZE.unpack(self.connection.ask(code, [_DEVICE.pack(self.index)], SIZE.size))[0]


class GgmlBuffer(Buffer):
    """Memory of a server: its handle there, and the address that the server gave it."""

    def __init__(self, device: GgmlDevice, nbytes: int, usage: BufferUsage, handle: int, base: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.usage = usage
        self.handle = handle
        self.base = base
        self._connection = device.connection
        self._is_open = True

    def write(self, offset: int, data: memoryview) -> None:
        for start, record in self._pieces(offset, data.nbytes):
            piece = data[start : start + _PIECE_NBYTES]
            self._connection.tell(Code.SET_TENSOR, [record, _SET_TAIL.pack(0, 0), piece])

    def read_into(self, offset: int, out: memoryview) -> None:
        for start, record in self._pieces(offset, out.nbytes):
            piece = out[start : start + _PIECE_NBYTES]
            self._connection.ask_into(Code.GET_TENSOR, [record, _TWO_SIZES.pack(0, piece.nbytes)], piece)

    def fill(self, offset: int, nbytes: int, value: int) -> None:
        for start, record in self._pieces(offset, nbytes):
            size = min(_PIECE_NBYTES, nbytes - start)
            self._connection.tell(Code.MEMSET_TENSOR, [record, _FILL_TAIL.pack(0, size, value)])

    def copy_from(self, offset: int, source: Buffer, source_offset: int, nbytes: int) -> bool:
        if not isinstance(source, GgmlBuffer) or source._connection is not self._connection:
            return False
        pairs = zip(source._pieces(source_offset, nbytes), self._pieces(offset, nbytes), strict=True)
        return all(
            self._connection.ask(Code.COPY_TENSOR, [from_record, to_record], 1) != b"\0"
            for (_, from_record), (_, to_record) in pairs
        )

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._connection.free(self.handle)

    def _pieces(self, offset: int, nbytes: int) -> list[tuple[int, bytes]]:
        """Return where each piece of a range starts in it, and its record; none for an empty range."""
        if not self._is_open:
            raise DeviceError("the buffer is closed")
        if not 0 <= offset <= offset + nbytes <= self.nbytes:
            raise GraphError(f"{nbytes} bytes at {offset} are outside a buffer of {self.nbytes}")
        return [
            (start, self._record(offset + start, min(_PIECE_NBYTES, nbytes - start)))
            for start in range(0, nbytes, _PIECE_NBYTES)
        ]

    def _record(self, offset: int, nbytes: int) -> bytes:
        return encode_tensor(bytes_record(self.handle, self.base + offset, nbytes))


class GgmlPlan(RunnablePlan):
    """A graph, ready to be sent."""

    def __init__(self, device: GgmlDevice, graph: Graph) -> None:
        self.graph = graph
        self.raw = encode_graph(device.index, graph_of(graph, place_of))
        self._device = device

    def run(self) -> None:
        """Have it computed; an answer to anything asked later says that it is done."""
        self._device.run(self)


class GgmlStream(SerialStream):
    """Sends one thing after the other; the server works through them in that order."""

    device: GgmlDevice

    def __init__(self, device: GgmlDevice) -> None:
        super().__init__(device)
        self._connection = device.connection

    def set_tensor(self, tensor: Tensor, data: memoryview, offset_bytes: int = 0) -> None:
        if offset_bytes == 0 and _is_padded(tensor):
            self._connection.tell(Code.INIT_TENSOR, [encode_tensor(tensor_of(tensor, place_of))])
        super().set_tensor(tensor, data, offset_bytes)

    def synchronize(self) -> None:
        self._connection.synchronize()


def place_of(tensor: Tensor) -> tuple[int, int]:
    """Return the handle of a tensor's buffer, and its address. Raises GraphError: it is not on such a device."""
    buffer, offset = tensor.location()
    if not isinstance(buffer, GgmlBuffer):
        raise GraphError(f"{tensor} is not placed on a device of a ggml-rpc server")
    return buffer.handle, buffer.base + offset


def _is_padded(tensor: Tensor) -> bool:
    """Whether some servers keep room behind its rows, which they must be told of before the first write."""
    return tensor.type.is_quantized and tensor.ne[0] % _PADDED_ROW != 0 and tensor.view_src is None
