"""A device of a worker, used like a local one.

Belongs here: `Device` in terms of commands. Must not be here: connecting (`connection`), or messages
(`dispatcher`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import get_args

from rpc_backend.client.buffer import RemoteBuffer
from rpc_backend.client.dispatcher import Dispatcher
from rpc_backend.client.events import EventNumbers, RemoteEvent
from rpc_backend.client.landings import Landings
from rpc_backend.client.peers import Peers
from rpc_backend.client.placement import place_on
from rpc_backend.client.plan import RemotePlan
from rpc_backend.client.questions import Questions
from rpc_backend.client.queue import CommandQueue
from rpc_backend.client.reads import ReadLimits, Reads
from rpc_backend.client.stream import RemoteStream
from rpc_backend.client.task import Peering, Place, RemoteTask, make_task
from rpc_backend.client.transfers import Transfers
from rpc_backend.client.uploads import UPLOAD_CHUNK_NBYTES, UploadOptions, Uploads
from rpc_backend.errors import (
    ChannelError,
    ErrorContext,
    GraphError,
    RemoteProtocolError,
    UnsupportedOpError,
)
from rpc_backend.graph import Graph, Tensor, encode_graph
from rpc_backend.interfaces import (
    Buffer,
    BufferUsage,
    Device,
    DeviceInfo,
    DeviceKind,
    Event,
    Memory,
    Onward,
    Stream,
)
from rpc_backend.protocol.commands import (
    ALLOC_BUFFER,
    BURY_TICKETS,
    COPY_TENSOR_TO,
    DROP_TICKETS,
    GET_ALIGNMENT,
    GET_DEVICE_MEMORY,
    GET_MAX_SIZE,
    GET_TENSORS,
    SUBMIT,
)
from rpc_backend.protocol.negotiation import WEIGHT_CACHE, WEIGHT_SOURCE
from rpc_backend.protocol.records import AllocBuffer, DeviceRef, HelloReply, Tickets

_WINDOW_NBYTES = 8 << 20


class RemoteDevice(Device):
    """Device `index` of the worker at the other end of a connection.

    Everything that is done on it goes through one queue, in order.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        index: int,
        info: DeviceInfo,
        hello: HelloReply,
        numbers: EventNumbers,
        peers: Peers,
    ) -> None:
        self.info = info
        self.index = index
        self.dispatcher = dispatcher
        self.peers = peers
        self.landings = Landings()
        self._numbers = numbers
        # All devices together keep within half of what the session may have waiting; headers take their part.
        limit_nbytes = max(1, hello.max_queued_nbytes // (2 * len(hello.devices)))
        window_nbytes = max(1, min(_WINDOW_NBYTES, limit_nbytes // 2))
        self._task_nbytes = min(hello.max_payload_nbytes, limit_nbytes)
        is_batched = dispatcher.minor >= GET_TENSORS.since and not dispatcher.settings.no_batched_get
        reads = ReadLimits(hello.max_payload_nbytes, is_batched)
        self._queue = CommandQueue(
            dispatcher, index, lambda: Reads(reads), window_nbytes=window_nbytes, limit_nbytes=limit_nbytes
        )
        uploads = Uploads(self._queue, _upload_options(dispatcher, hello, window_nbytes, limit_nbytes))
        self._transfers = Transfers(self._queue, uploads, min(hello.max_payload_nbytes, window_nbytes), reads)
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

    def compile(self, graph: Graph) -> RemotePlan:
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

    def prepare_task(
        self,
        graph: Graph,
        *,
        writes: Sequence[Tensor] = (),
        reads: Sequence[Tensor] = (),
        receives: Sequence[Tensor] = (),
        onward: Sequence[Onward] = (),
    ) -> RemoteTask:
        """As `Device.prepare_task`.

        Raises:
            GraphError: also if results are to go to a device that `can_send_to` denies.
            LimitError: values or results are more than the worker takes in a message.
        """
        places = [(item, self._place(item.target)) for item in onward]
        has_submit, peering = self.dispatcher.minor >= SUBMIT.since, _peering(self.dispatcher)
        return make_task(
            self.compile(graph),
            writes,
            reads,
            receives,
            places,
            max_payload_nbytes=self._task_nbytes,
            has_submit=has_submit,
            peering=peering,
        )

    def can_send_to(self, target: Device) -> bool:
        """Whether both workers can in the same way, the switches allow it, and a link between them stands.

        Asks both workers the first time.
        """
        if not isinstance(target, RemoteDevice):
            return False
        ours, theirs = _peering(self.dispatcher), _peering(target.dispatcher)
        if ours is not theirs or ours is Peering.NONE:
            return False
        if target.dispatcher is self.dispatcher:
            return ours is Peering.TICKETS
        return self.peers.open(target.dispatcher)

    def drop_tickets(self, tickets: Sequence[bytes], reason: str) -> None:
        if self.dispatcher.minor < DROP_TICKETS.since:
            self.landings.drop(tickets, reason)
        else:
            with suppress(ChannelError):  # with the worker, all that waits for a ticket is gone
                self.dispatcher.post(DROP_TICKETS, Tickets(list(tickets), reason))

    @property
    def buries_tickets(self) -> bool:
        return self.dispatcher.minor >= BURY_TICKETS.since

    def bury_tickets(self, tickets: Sequence[bytes]) -> None:
        if self.buries_tickets:
            with suppress(ChannelError):  # with the worker, all that it kept is gone
                self.dispatcher.post(BURY_TICKETS, Tickets(list(tickets)))

    def create_event(self) -> Event:
        return RemoteEvent(self.dispatcher, self._numbers)

    def create_stream(self) -> Stream:
        return RemoteStream(self, self._transfers)

    def close(self) -> None:
        """Nothing is held here: the connection frees all of its session when it is closed."""

    def _place(self, target: Device) -> Place:
        if not isinstance(target, RemoteDevice) or not self.can_send_to(target):
            raise GraphError(f"{self.info.name} cannot send results to {target.info.name}")
        endpoint = "" if target.dispatcher is self.dispatcher else target.dispatcher.name
        return Place(endpoint, target.index)


def open_devices(dispatcher: Dispatcher, hello: HelloReply) -> list[RemoteDevice]:
    """Return the devices that a worker named in its answer to HELLO, each asked for its alignment and limit.

    Raises:
        RemoteProtocolError: a device is not described by name, description and a known kind.
    """
    devices = []
    numbers, peers = EventNumbers(), Peers(dispatcher)
    for index, fields in enumerate(hello.devices):
        name, description, kind = _description(dispatcher, fields)
        info = DeviceInfo(
            name=f"{name}@{dispatcher.name}",
            description=description,
            kind=kind,
            alignment=dispatcher.call(GET_ALIGNMENT, DeviceRef(index)).nbytes,
            max_buffer_nbytes=dispatcher.call(GET_MAX_SIZE, DeviceRef(index)).nbytes,
        )
        devices.append(RemoteDevice(dispatcher, index, info, hello, numbers, peers))
    return devices


def _upload_options(dispatcher: Dispatcher, hello: HelloReply, window_nbytes: int, limit_nbytes: int) -> UploadOptions:
    has_content = not {WEIGHT_CACHE, WEIGHT_SOURCE}.isdisjoint(hello.abilities)
    if dispatcher.settings.load_opt:
        return UploadOptions(min(UPLOAD_CHUNK_NBYTES, hello.max_payload_nbytes, window_nbytes), has_content)
    return UploadOptions(min(hello.max_payload_nbytes, limit_nbytes), has_content, is_optimized=False)


def _description(dispatcher: Dispatcher, fields: list[str]) -> tuple[str, str, DeviceKind]:
    if len(fields) >= 3:
        for kind in get_args(DeviceKind):
            if kind == fields[2]:
                return fields[0], fields[1], kind
    raise RemoteProtocolError(f"HELLO names a device {fields!r:.200}", context=ErrorContext(worker=dispatcher.name))


def _peering(dispatcher: Dispatcher) -> Peering:
    if not dispatcher.settings.p2p or dispatcher.settings.no_async_copy or dispatcher.minor < COPY_TENSOR_TO.since:
        return Peering.NONE
    return Peering.TICKETS if dispatcher.minor >= SUBMIT.since else Peering.COPIES
