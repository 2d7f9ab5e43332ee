"""A device of a worker, used like a local one.

Belongs here: `Device` in terms of commands. Must not be here: connecting (`connection`), or messages
(`dispatcher`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from rpc_backend.client.buffer import RemoteBuffer
from rpc_backend.client.dispatcher import Dispatcher
from rpc_backend.client.placement import place_on
from rpc_backend.client.plan import RemotePlan
from rpc_backend.client.questions import Questions
from rpc_backend.client.queue import CommandQueue
from rpc_backend.client.stream import RemoteStream
from rpc_backend.client.transfers import Transfers
from rpc_backend.errors import ErrorContext, RemoteProtocolError, UnsupportedOpError
from rpc_backend.graph import Graph, Tensor, encode_graph
from rpc_backend.interfaces import Buffer, BufferUsage, Device, DeviceInfo, DeviceKind, Memory, Plan, Stream
from rpc_backend.protocol.commands import ALLOC_BUFFER, GET_ALIGNMENT, GET_DEVICE_MEMORY, GET_MAX_SIZE
from rpc_backend.protocol.records import AllocBuffer, DeviceRef, HelloReply

_WINDOW_NBYTES = 4 << 20


class RemoteDevice(Device):
    """Device `index` of the worker at the other end of a connection.

    Everything that is done on it goes through one queue, in order.
    """

    def __init__(self, dispatcher: Dispatcher, index: int, info: DeviceInfo, hello: HelloReply) -> None:
        self.info = info
        self.index = index
        self.dispatcher = dispatcher
        window_nbytes = min(_WINDOW_NBYTES, hello.max_queued_nbytes // 4)
        self._queue = CommandQueue(dispatcher, index, window_nbytes=window_nbytes)
        self._transfers = Transfers(self._queue, min(hello.max_payload_nbytes, window_nbytes))
        self._questions = Questions(dispatcher, index)

    def memory(self) -> Memory:
        # A freed buffer may still wait in the stream, and must count as free.
        self._queue.settle_frees()
        memory = self.dispatcher.call(GET_DEVICE_MEMORY, DeviceRef(self.index))
        return Memory(memory.free_nbytes, memory.total_nbytes)

    def alloc_buffer(self, nbytes: int, usage: BufferUsage = BufferUsage.ANY) -> Buffer:
        request = AllocBuffer(self.index, nbytes, str(usage))
        handle = self._queue.call_always(ALLOC_BUFFER, request).handle
        return RemoteBuffer(self, self._transfers, handle, nbytes, usage)

    def supports_op(self, tensor: Tensor) -> bool:
        return self.supports_ops([tensor])[0]

    def supports_ops(self, tensors: Sequence[Tensor]) -> list[bool]:
        return self._questions.supports(tensors)

    def alloc_size(self, tensor: Tensor) -> int:
        return self.alloc_sizes([tensor])[0]

    def alloc_sizes(self, tensors: Sequence[Tensor]) -> list[int]:
        sizes = self._questions.alloc_sizes(tensors)
        return [max(size, tensor.nbytes) for size, tensor in zip(sizes, tensors, strict=True)]

    def compile(self, graph: Graph) -> Plan:
        """Encode a graph once; the worker compiles it when it is first computed.

        Raises:
            GraphError: a tensor lies anywhere but on this device.
            UnsupportedOpError: as `Device.compile`.
        """
        record = encode_graph(graph, place_on(self))
        for node, supported in zip(graph.nodes, self.supports_ops(graph.nodes), strict=True):
            if not supported:
                name = node.op.name if node.op else ""
                context = ErrorContext(worker=self.dispatcher.name, device=self.info.name, op=name)
                raise UnsupportedOpError(f"{self.info.name} does not run {node}", context=context)
        return RemotePlan(self, graph, record)

    def create_stream(self) -> Stream:
        return RemoteStream(self, self._transfers)

    def close(self) -> None:
        """Nothing is held here: the connection frees all of its session when it is closed."""


def open_devices(dispatcher: Dispatcher, hello: HelloReply) -> list[RemoteDevice]:
    """Return the devices that a worker named in its answer to HELLO, each asked for its alignment and limit.

    Raises:
        RemoteProtocolError: a device is not described by name, description and a known kind.
    """
    devices = []
    for index, fields in enumerate(hello.devices):
        name, description, kind = _description(dispatcher, fields)
        info = DeviceInfo(
            name=f"{name}@{dispatcher.name}",
            description=description,
            kind=kind,
            alignment=dispatcher.call(GET_ALIGNMENT, DeviceRef(index)).nbytes,
            max_buffer_nbytes=dispatcher.call(GET_MAX_SIZE, DeviceRef(index)).nbytes,
        )
        devices.append(RemoteDevice(dispatcher, index, info, hello))
    return devices


def _description(dispatcher: Dispatcher, fields: list[str]) -> tuple[str, str, DeviceKind]:
    if len(fields) >= 3:
        for kind in get_args(DeviceKind):
            if kind == fields[2]:
                return fields[0], fields[1], kind
    raise RemoteProtocolError(f"HELLO names a device {fields!r:.200}", context=ErrorContext(worker=dispatcher.name))
