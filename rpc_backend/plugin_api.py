"""All that a plugin may import of this project.

Belongs here: names made public to plugin authors. Must not be here: definitions.
"""

from rpc_backend.errors import ComputeError, ConfigError, DeviceError, GraphError, OutOfMemoryError, UnsupportedOpError
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
from rpc_backend.hookspecs import ComputeBackend, DeviceOptions, Probe, hookimpl
from rpc_backend.interfaces import (
    Buffer,
    BufferUsage,
    Device,
    DeviceInfo,
    HostBuffer,
    Memory,
    Plan,
    RunnablePlan,
    SerialStream,
    Stream,
    host_address,
    host_bytes,
)

__all__ = [
    "ELEMENT_TYPES", "OPS", "Buffer", "BufferUsage", "ComputeBackend", "ComputeError", "ConfigError", "Device",
    "DeviceError", "DeviceInfo", "DeviceOptions", "ElementType", "Glu", "Graph", "GraphError", "HostBuffer",
    "Memory", "Op", "OutOfMemoryError", "Plan", "Probe", "RopeMode", "RunnablePlan", "SerialStream", "Stream",
    "Tensor", "Unary", "UnsupportedOpError", "element_type", "hookimpl", "host_address", "host_bytes",
    "packed_strides",
]  # fmt: skip
