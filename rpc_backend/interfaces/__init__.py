"""The few nouns of the system, one interface each."""

from rpc_backend.interfaces.channel import (
    Carrier,
    Channel,
    Listener,
    OnLost,
    OnMessage,
    OnPeerLost,
    OnPeerMessage,
    PeerId,
    Ticket,
)
from rpc_backend.interfaces.device import (
    Buffer,
    BufferUsage,
    Device,
    DeviceInfo,
    DeviceKind,
    Memory,
    Plan,
    RunnablePlan,
    Stream,
)
from rpc_backend.interfaces.event import Event
from rpc_backend.interfaces.gateway import Gateway, LocalDial
from rpc_backend.interfaces.host_device import HostDevice
from rpc_backend.interfaces.host_memory import HostBuffer, host_address, host_bytes
from rpc_backend.interfaces.payloads import Carried, LinkOffer, PayloadLink, PayloadTransport, Tally
from rpc_backend.interfaces.queued_stream import QueuedStream
from rpc_backend.interfaces.serial_stream import SerialStream
from rpc_backend.interfaces.task import TICKET_NBYTES, Onward, Task, TaskRun
from rpc_backend.interfaces.transport import EndpointParts, Transport

__all__ = [
    "TICKET_NBYTES", "Buffer", "BufferUsage", "Carried", "Carrier", "Channel", "Device", "DeviceInfo", "DeviceKind",
    "EndpointParts", "Event", "Gateway", "HostBuffer", "HostDevice", "LinkOffer", "Listener", "LocalDial", "Memory",
    "OnLost", "OnMessage", "OnPeerLost", "OnPeerMessage", "Onward", "PayloadLink", "PayloadTransport", "PeerId", "Plan",
    "QueuedStream", "RunnablePlan", "SerialStream", "Stream", "Tally", "Task", "TaskRun", "Ticket", "Transport",
    "host_address", "host_bytes",
]  # fmt: skip
