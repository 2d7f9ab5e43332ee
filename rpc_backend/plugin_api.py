"""All that a plugin may import of this project.

Belongs here: names made public to plugin authors. Must not be here: definitions.
"""

from rpc_backend.errors import (
    ComputeError,
    ConfigError,
    ConnectError,
    DeviceError,
    EndpointError,
    GraphError,
    OutOfMemoryError,
    UnsupportedOpError,
)
from rpc_backend.graph import (
    ELEMENT_TYPES,
    OPS,
    ElementType,
    Glu,
    Graph,
    Op,
    RopeMode,
    Tensor,
    Unary,
    element_type,
    packed_strides,
)
from rpc_backend.hookspecs import ComputeBackend, DeviceOptions, Probe, TransportPlugin, hookimpl
from rpc_backend.interfaces import (
    Buffer,
    BufferUsage,
    Device,
    DeviceInfo,
    EndpointParts,
    HostBuffer,
    HostDevice,
    Memory,
    Plan,
    RunnablePlan,
    SerialStream,
    Stream,
    Transport,
    host_address,
    host_bytes,
)

__all__ = [
    "ELEMENT_TYPES", "OPS", "Buffer", "BufferUsage", "ComputeBackend", "ComputeError", "ConfigError", "ConnectError",
    "Device", "DeviceError", "DeviceInfo", "DeviceOptions", "ElementType", "EndpointError", "EndpointParts", "Glu",
    "Graph", "GraphError", "HostBuffer", "HostDevice", "Memory", "Op", "OutOfMemoryError", "Plan", "Probe", "RopeMode",
    "RunnablePlan", "SerialStream", "Stream", "Tensor", "Transport", "TransportPlugin", "Unary", "UnsupportedOpError",
    "element_type", "hookimpl", "host_address", "host_bytes", "packed_strides",
]  # fmt: skip
