"""Worker processes for tests: real ones, that can be killed, stopped, and told to fail.

Belongs here: starting them, and the process itself (`python -m rpc_backend.testing.workers`). Must not be here:
devices that fail (`devices`), or the product's own worker command (`cli`).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

import click

from rpc_backend.errors import ConfigError
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.host.local_workers import LocalWorker
from rpc_backend.interfaces import Device
from rpc_backend.protocol import parse_endpoint
from rpc_backend.protocol.negotiation import NEWEST
from rpc_backend.registry import Registry, load_registry
from rpc_backend.settings import child_environment
from rpc_backend.testing.devices import FailingDevice, NullDevice
from rpc_backend.worker import Worker, WorkerConfig
from rpc_backend.worker.dial_rules import parse_allowed
from rpc_backend.worker.lifetime import watch_stdin

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 3.0


class WorkerProcess:
    """A worker in a process of its own; as a context manager it ends with the block."""

    def __init__(
        self,
        *devices: str,
        mem_nbytes: int | None = None,
        heartbeat_ms: int = 1000,
        max_queued_nbytes: int | None = None,
        ticket_timeout_s: float | None = None,
        port: int = 0,
        listen: str = "127.0.0.1",
        options: Sequence[str] = (),
    ) -> None:
        """Start it and wait until it serves.

        A device is `NAME[:key=value,…]`: a compute backend or `null`, with `fail_on` (numbers of graph runs joined by
        `+`), `delay_ms` per graph and `name`. `mem_nbytes` caps each. `options` are further ones of `main`.

        Raises:
            PluginLoadError, ConnectError: it did not start.
        """
        command = [sys.executable, "-m", "rpc_backend.testing.workers", "--heartbeat-ms", str(heartbeat_ms)]
        command += ["--listen", f"tcp://{listen}:{port}", *options]
        command += [part for device in devices for part in ("--device", device)]
        command += [] if mem_nbytes is None else ["--mem", str(mem_nbytes)]
        command += [] if max_queued_nbytes is None else ["--max-queued", str(max_queued_nbytes)]
        command += [] if ticket_timeout_s is None else ["--ticket-timeout", str(ticket_timeout_s)]
        self._worker = LocalWorker(0, command, child_environment({}))
        try:
            self.endpoint = str(self._worker.wait_ready(time.monotonic() + _START_TIMEOUT_S))
        except BaseException:
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._worker.process.poll() is None

    @property
    def pid(self) -> int:
        return self._worker.pid

    def kill(self) -> None:
        """End it at once, as `kill -9` does."""
        self._worker.process.kill()
        self._worker.process.wait()

    def pause(self) -> None:
        """Stop it, as `kill -STOP` does."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on, as `kill -CONT` does."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it. A second call does nothing."""
        if self.is_alive:
            self.resume()
        self._worker.terminate()
        self._worker.close(_STOP_TIMEOUT_S)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@click.command()
@click.option("--listen", default="tcp://127.0.0.1:0")
@click.option("--device", "devices", multiple=True, required=True)
@click.option("--mem", "mem_nbytes", type=int, default=None)
@click.option("--heartbeat-ms", type=int, default=1000)
@click.option("--max-queued", "max_queued_nbytes", type=int, default=None)
@click.option("--ticket-timeout", "ticket_timeout_s", type=float, default=None)
@click.option("--peer-allow", "peer_allow", multiple=True)
@click.option("--proto-minor", type=int, default=NEWEST)
def main(
    listen: str,
    devices: Sequence[str],
    mem_nbytes: int | None,
    heartbeat_ms: int,
    max_queued_nbytes: int | None,
    ticket_timeout_s: float | None,
    peer_allow: Sequence[str],
    proto_minor: int,
) -> None:
    """Serve devices until standard input closes or SIGTERM comes."""
    registry = load_registry()
    made = [make_device(registry, text) for text in devices]
    caps = {} if mem_nbytes is None else dict.fromkeys(range(len(made)), mem_nbytes)
    endpoint = parse_endpoint(listen, listen=True)
    config = WorkerConfig(
        (endpoint,),
        caps,
        heartbeat_ms=heartbeat_ms,
        insecure=not endpoint.is_loopback(),
        proto_minor=proto_minor,
        peer_allow=parse_allowed(peer_allow),
    )
    if max_queued_nbytes is not None:
        config = replace(config, max_queued_nbytes=max_queued_nbytes)
    if ticket_timeout_s is not None:
        config = replace(config, ticket_timeout_s=ticket_timeout_s)
    with Worker(config, made, registry.transport_for, build="test") as worker:
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        watch_stdin(worker.stop)
        for name in worker.endpoints:
            click.echo(f"ready {name}")
        worker.wait()


def make_device(registry: Registry, text: str) -> Device:
    """Make the device of `NAME[:key=value,…]`.

    Raises:
        ConfigError: an unknown key.
    """
    backend, _, tail = text.partition(":")
    options = dict(part.split("=", 1) for part in tail.split(",") if part)
    unknown = set(options) - {"fail_on", "delay_ms", "name"}
    if unknown:
        raise ConfigError(f"device {text!r} has the unknown options {', '.join(sorted(unknown))}")
    inner = NullDevice() if backend == "null" else registry.create_devices(backend, DeviceOptions(threads=1))[0]
    fail_on = {int(number) for number in options.get("fail_on", "").split("+") if number}
    delay_s = float(options.get("delay_ms", 0)) / 1000
    return FailingDevice(inner, fail_on, delay_s=delay_s, name=options.get("name", ""))


if __name__ == "__main__":
    main()
