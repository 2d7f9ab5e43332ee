"""The few nouns of the system, one interface each."""

from rpc_backend.interfaces.device import (
    Buffer,
    BufferUsage,
    Device,
    DeviceInfo,
    Memory,
    Plan,
    RunnablePlan,
    Stream,
)
from rpc_backend.interfaces.host_memory import HostBuffer, host_address, host_bytes
from rpc_backend.interfaces.serial_stream import SerialStream

__all__ = [
    "Buffer", "BufferUsage", "Device", "DeviceInfo", "HostBuffer", "Memory", "Plan", "RunnablePlan", "SerialStream",
    "Stream", "host_address", "host_bytes",
]  # fmt: skip
