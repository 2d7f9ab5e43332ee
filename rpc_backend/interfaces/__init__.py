"""The few nouns of the system, one interface each."""

from rpc_backend.interfaces.channel import (
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
from rpc_backend.interfaces.host_device import HostDevice
from rpc_backend.interfaces.host_memory import HostBuffer, host_address, host_bytes
from rpc_backend.interfaces.queued_stream import QueuedStream
from rpc_backend.interfaces.serial_stream import SerialStream
from rpc_backend.interfaces.task import TICKET_NBYTES, Onward, Task, TaskRun
from rpc_backend.interfaces.transport import EndpointParts, Transport

__all__ = [
    "TICKET_NBYTES", "Buffer", "BufferUsage", "Channel", "Device", "DeviceInfo", "DeviceKind", "EndpointParts",
    "Event", "HostBuffer", "HostDevice", "Listener", "Memory", "OnLost", "OnMessage", "OnPeerLost", "OnPeerMessage",
    "Onward", "PeerId", "Plan", "QueuedStream", "RunnablePlan", "SerialStream", "Stream", "Task", "TaskRun", "Ticket",
    "Transport", "host_address", "host_bytes",
]  # fmt: skip
