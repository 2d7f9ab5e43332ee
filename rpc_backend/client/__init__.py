"""The client: a worker's devices as devices of this program."""

from rpc_backend.client.connection import Connection, connect
from rpc_backend.client.counters import CommandCounts, Counters
from rpc_backend.client.device import RemoteDevice

__all__ = ["CommandCounts", "Connection", "Counters", "RemoteDevice", "connect"]
