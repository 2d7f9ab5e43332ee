"""The devices a model runs on: remote ones behind workers, or one of this process.

Belongs here: starting and connecting workers from what the user wrote, and closing them. Must not be here:
what runs on the devices.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rpc_backend.client import Connection, connect
from rpc_backend.errors import ConfigError, ConnectError
from rpc_backend.hookspecs import ProviderOptions
from rpc_backend.host.local_workers import LocalWorkers
from rpc_backend.interfaces import Device
from rpc_backend.protocol.endpoint import Endpoint, parse_workers
from rpc_backend.registry import Registry, parse_device
from rpc_backend.settings import Settings

Made = TypeVar("Made")

LOCAL = "local:"
NO_WORKERS = "none"
_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class WorkersRequest:
    """Which devices to use: `workers` is endpoints, `local:N` or `none` (a device of this process).

    `backend` (as `NAME` or `NAME:key=value,…`) and `threads` (0 = the backend's choice) are for workers that
    this process starts and for its own device. `wait_s` is how long a worker may take to appear. `transport`, as
    `NAME` or `NAME:key=value,…`, stands for the setting of that name.
    """

    workers: str | Sequence[str] = "local:2"
    backend: str = "numba"
    threads: int = 0
    wait_s: float = 0.0
    transport: str | None = None


@dataclass(slots=True)
class DeviceSet:
    """Open devices, and the connections and processes behind them; `own_devices` are those behind no connection."""

    devices: list[Device]
    connections: list[Connection] = field(default_factory=list)
    local_workers: LocalWorkers | None = None
    own_devices: list[Device] = field(default_factory=list)

    def wire(self) -> dict[str, Any]:
        """Return the traffic of each connection so far, by endpoint: requests, bytes, and requests by command.

        `beside` has the payloads among them that did not travel inside the fabric.
        """
        return {connection.endpoint: _traffic(connection) for connection in self.connections}

    def tell_load(self) -> None:
        """Print where the time of the load went, for each connection that noted it."""
        for connection in self.connections:
            if connection.dispatcher.profile is not None:
                sys.stderr.write(connection.dispatcher.profile.take(connection.endpoint) + "\n")

    def close(self) -> None:
        """Close connections, then end the workers this process started. A second call does nothing."""
        with ThreadPoolExecutor(max_workers=max(1, len(self.connections))) as pool:
            list(pool.map(lambda connection: connection.close(), self.connections))
        for device in self.own_devices:
            device.close()
        if self.local_workers is not None:
            self.local_workers.close()


def open_devices(request: WorkersRequest, settings: Settings, registry: Registry) -> DeviceSet:
    """Start workers where asked, connect to all, and list their devices in order.

    Raises:
        ConfigError: `workers` cannot be parsed, or names no worker.
        ConnectError: a worker is not there, or speaks something else; the message names its endpoint.
        PluginError: the backend is unknown or not usable.
    """
    if request.workers == NO_WORKERS:
        name, options = parse_device(request.backend, request.threads, settings)
        devices = list(registry.create_devices(name, options))
        return DeviceSet(devices, own_devices=devices)
    count = _local_count(request.workers)
    if request.transport is not None:
        settings = replace(settings, transport=request.transport)
    registry.payload_transports(settings.transport)  # a mistake is told before anything is started
    with ExitStack() as stack:
        local = None if count is None else _start_local(request, count, settings)
        if local is not None:
            stack.callback(local.close)
        endpoints = parse_workers(request.workers) if local is None else local.endpoints
        workers = [endpoint for endpoint in endpoints if registry.provider_for(endpoint.scheme) is None]
        connections = connect_all(workers, settings, registry, request.wait_s)
        found: dict[Endpoint, Sequence[Device]] = {}
        for endpoint, connection in zip(workers, connections, strict=True):
            stack.callback(connection.close)
            found[endpoint] = connection.devices()
        own: list[Device] = []
        for endpoint in (endpoint for endpoint in endpoints if endpoint not in found):
            found[endpoint] = _provide(endpoint, settings, registry, request.wait_s)
            for device in found[endpoint]:
                stack.callback(device.close)
                own.append(device)
        stack.pop_all()
    return DeviceSet([device for endpoint in endpoints for device in found[endpoint]], connections, local, own)


def _provide(endpoint: Endpoint, settings: Settings, registry: Registry, wait_s: float) -> Sequence[Device]:
    """Return the devices behind an endpoint that is no worker of ours. Raises as `open_devices`."""
    options = ProviderOptions(settings.connect_timeout_ms / 1000, settings.command_timeout_ms / 1000)
    return _retry(lambda: registry.open_devices(endpoint, options), time.monotonic() + wait_s)


def _start_local(request: WorkersRequest, count: int, settings: Settings) -> LocalWorkers:
    """Start local workers; unless told otherwise they share the processors that this process may use."""
    threads = request.threads or max(1, usable_processors() // count)
    return LocalWorkers.start(count, backend=request.backend, threads=threads, settings=settings)


def usable_processors() -> int:
    """Return how many processors this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _traffic(connection: Connection) -> dict[str, Any]:
    counts, carrier = connection.counters.snapshot(), connection.carrier
    return {
        "messages": sum(count.calls for count in counts.values()),
        "bytes_out": sum(count.nbytes_out for count in counts.values()),
        "bytes_in": sum(count.nbytes_in for count in counts.values()),
        "commands": {name: count.calls for name, count in counts.items()},
        "beside": {
            "transport": carrier.name,
            "bytes_out": carrier.carried.nbytes_out,
            "bytes_in": carrier.carried.nbytes_in,
        },
    }


def connect_all(
    endpoints: Sequence[Endpoint], settings: Settings, registry: Registry, wait_s: float
) -> list[Connection]:
    """Connect to every endpoint side by side; on any failure none stays open. Raises as `open_devices`."""
    deadline = time.monotonic() + wait_s

    def open_one(endpoint: Endpoint) -> Connection:
        return _retry(lambda: connect(endpoint, settings, registry=registry), deadline)

    with ThreadPoolExecutor(max_workers=max(1, len(endpoints))) as pool:
        futures = [pool.submit(open_one, endpoint) for endpoint in endpoints]
    failed = next((error for future in futures if (error := future.exception()) is not None), None)
    if failed is None:
        return [future.result() for future in futures]
    for future in futures:
        if future.exception() is None:
            future.result().close()
    raise failed


def _retry(action: Callable[[], Made], deadline: float) -> Made:
    """Do it again while it raises ConnectError, until a time of `time.monotonic`."""
    while True:
        try:
            return action()
        except ConnectError:
            if time.monotonic() + _RETRY_S >= deadline:
                raise
            time.sleep(_RETRY_S)


def _local_count(workers: str | Sequence[str]) -> int | None:
    if not isinstance(workers, str) or not workers.startswith(LOCAL):
        return None
    text = workers.removeprefix(LOCAL)
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise ConfigError(f"workers {workers!r}: local:N needs N from 1 to 64")
    return int(text)
