"""The hooks a plugin can implement. They are called once, at start-up.

Belongs here: hook signatures. Must not be here: anything that runs later; hot paths call the objects
that the registered factories made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pluggy

from rpc_backend.interfaces import Device, Transport

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
    the `key=value` pairs of `--device NAME:key=value`; a backend refuses those it does not know.
    """

    threads: int = 0
    cache_dir: Path | None = None
    extra: dict[str, str] = field(default_factory=dict)


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


@hookspec
def rpc_register_backends(register: Callable[[ComputeBackend], None]) -> None:
    """Register compute backends: call `register` once for each."""


@hookspec
def rpc_register_transports(register: Callable[[TransportPlugin], None]) -> None:
    """Register transports: call `register` once for each."""
