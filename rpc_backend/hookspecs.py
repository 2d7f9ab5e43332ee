"""The hooks a plugin can implement. They are called once, at start-up.

Belongs here: hook signatures. Must not be here: anything that runs later; hot paths call the objects
that the registered factories made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pluggy

from rpc_backend.interfaces import Device, EndpointParts, Gateway, LocalDial, PayloadTransport, Transport

PROJECT = "rpc_backend"
ENTRY_POINT_GROUP = "rpc_backend"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a plugin is usable here, and if not, why and what would help."""

    usable: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What the user asked of a compute backend.

    `threads` 0 = the backend's own choice. `cache_dir` is where compiled kernels may be kept. `extra` are
    the `key=value` pairs of `--device NAME:key=value`; a backend refuses those it does not know. `cpu_features`
    is what `ZMQ_RPC_CPU_FEATURES` says of a CPU's instructions.
    """

    threads: int = 0
    cache_dir: Path | None = None
    extra: dict[str, str] = field(default_factory=dict)
    cpu_features: str = "auto"


@dataclass(frozen=True, slots=True)
class ComputeBackend:
    """A compute backend: `probe` has no side effects; `create` does the heavy imports and makes devices."""

    name: str
    probe: Callable[[], Probe]
    create: Callable[[DeviceOptions], Sequence[Device]]


@dataclass(frozen=True, slots=True)
class TransportPlugin:
    """A transport for some URL schemes; `probe` and `create` as of a compute backend."""

    name: str
    schemes: tuple[str, ...]
    probe: Callable[[], Probe]
    create: Callable[[], Transport]


@dataclass(frozen=True, slots=True)
class PayloadPlugin:
    """A way for payloads beside the fabric, asked for with `--transport NAME:key=value,…`.

    `probe` as of a compute backend, without options. `create` gets the pairs, refuses those it does not know with a
    ConfigError, and raises PluginLoadError with the part that is missing where it cannot work.
    """

    name: str
    probe: Callable[[], Probe]
    create: Callable[[Mapping[str, str]], PayloadTransport]


@dataclass(frozen=True, slots=True)
class GatewayPlugin:
    """A gateway: `create` makes one that will listen at an endpoint; `probe` as of a compute backend."""

    name: str
    probe: Callable[[], Probe]
    create: Callable[[EndpointParts, LocalDial], Gateway]


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """How long a device provider may wait: for a connection, and for any one command."""

    connect_timeout_s: float
    command_timeout_s: float


@dataclass(frozen=True, slots=True)
class DeviceProvider:
    """Devices behind endpoints of some URL schemes that speak no protocol of ours; `probe` as of a compute backend.

    `create` connects. It raises EndpointError or ConnectError.
    """

    name: str
    schemes: tuple[str, ...]
    probe: Callable[[], Probe]
    create: Callable[[EndpointParts, ProviderOptions], Sequence[Device]]


@hookspec
def rpc_register_backends(register: Callable[[ComputeBackend], None]) -> None:
    """Register compute backends: call `register` once for each."""


@hookspec
def rpc_register_transports(register: Callable[[TransportPlugin], None]) -> None:
    """Register transports: call `register` once for each."""


@hookspec
def rpc_register_payloads(register: Callable[[PayloadPlugin], None]) -> None:
    """Register ways for payloads beside the fabric: call `register` once for each."""


@hookspec
def rpc_register_gateways(register: Callable[[GatewayPlugin], None]) -> None:
    """Register gateways: call `register` once for each."""


@hookspec
def rpc_register_device_providers(register: Callable[[DeviceProvider], None]) -> None:
    """Register device providers: call `register` once for each."""
