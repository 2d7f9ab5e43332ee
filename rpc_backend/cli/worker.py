"""`zmq-rpc-worker`: serve the devices of this machine.

Belongs here: the command, its options and its output. Must not be here: serving.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from importlib.metadata import version
from textwrap import indent
from typing import TYPE_CHECKING, NoReturn

import click

from rpc_backend.cli.console import DISTRIBUTION, debug_option, run_cli, switches_help
from rpc_backend.cli.values import ByteSize
from rpc_backend.text import render_table

if TYPE_CHECKING:
    from rpc_backend.hookspecs import ComputeBackend, TransportPlugin
    from rpc_backend.registry import Registry

_SIGNAL_POLL_S = 0.25
_LOG_LEVELS = ("debug", "info", "warning", "error")


@click.command(
    "zmq-rpc-worker",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=switches_help(),
)
@click.option(
    "--listen",
    multiple=True,
    default=("tcp://127.0.0.1:50151",),
    show_default=True,
    metavar="ENDPOINT",
    help="Where to serve: tcp://host:port (port 0 picks one), tcp://[v6]:port or ipc://path; repeatable.",
)
@click.option(
    "--device",
    "backends",
    multiple=True,
    default=("numba",),
    show_default=True,
    metavar="NAME[:KEY=VALUE,…]",
    help="Compute backend whose devices to serve; repeatable.",
)
@click.option(
    "--threads", type=click.IntRange(0), default=0, help="Compute threads per device; 0 is the backend's choice."
)
@click.option("--mem", "mem_nbytes", type=ByteSize(), default=None, help="Memory that clients may take of each device.")
@click.option("--insecure", is_flag=True, help="Serve other machines without keys: anyone who can connect may use it.")
@click.option("--proto-minor", type=int, default=-1, metavar="N", help="Speak as an older worker of this minor.")
@click.option("--list", "list_only", is_flag=True, help="List backends and transports, usable or why not, and exit.")
@click.option("--exit-on-stdin-close", is_flag=True, help="Stop when standard input ends, as when a parent dies.")
@click.option("--log-level", type=click.Choice(_LOG_LEVELS), default="warning", show_default=True)
@click.version_option(package_name=DISTRIBUTION, prog_name="zmq-rpc-worker")
@debug_option
def worker(
    *,
    listen: tuple[str, ...],
    backends: tuple[str, ...],
    threads: int,
    mem_nbytes: int | None,
    insecure: bool,
    proto_minor: int,
    list_only: bool,
    exit_on_stdin_close: bool,
    log_level: str,
) -> None:
    """Serve the compute devices of this machine to clients.

    Prints "ready ENDPOINT" on a line of its own for each endpoint once it serves. Ctrl-C or SIGTERM stops it.
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from rpc_backend.registry import load_registry, parse_device  # heavy: not for --help

    registry = load_registry()
    if list_only:
        click.echo("\n".join(listing(registry)))
        return
    from rpc_backend.protocol import parse_workers
    from rpc_backend.settings import from_environment
    from rpc_backend.worker import Worker, WorkerConfig
    from rpc_backend.worker.lifetime import watch_stdin

    settings = from_environment()
    endpoints = tuple(parse_workers(listen, listen=True))
    stop = _stop_on_signals()
    asked = [parse_device(text, threads, settings) for text in backends]
    devices = [device for name, options in asked for device in registry.create_devices(name, options)]
    config = WorkerConfig(
        endpoints,
        {} if mem_nbytes is None else dict.fromkeys(range(len(devices)), mem_nbytes),
        heartbeat_ms=settings.heartbeat_timeout_ms,
        insecure=insecure,
        proto_minor=proto_minor,
    )
    with Worker(config, devices, registry.transport_for, build=version(DISTRIBUTION)) as server:
        if exit_on_stdin_close:
            watch_stdin(stop.set)
        for endpoint in server.endpoints:
            click.echo(f"ready {endpoint}")
        # A signal that another thread took does not wake this one, and its handler runs here: look now and then.
        while not stop.wait(_SIGNAL_POLL_S):
            continue


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    run_cli(worker)


def _stop_on_signals() -> threading.Event:
    """Return an event that the first Ctrl-C or SIGTERM sets; a second one ends the process at once."""
    stop = threading.Event()

    def ask_to_stop(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask_to_stop)
    return stop


def listing(registry: Registry) -> Iterator[str]:
    """Yield the lines of `--list`."""
    backends = [(name, _usable(plugin)) for name, plugin in sorted(registry.backends.items())]
    transports = [
        (name, " ".join(f"{scheme}://" for scheme in plugin.schemes), _usable(plugin))
        for name, plugin in sorted(registry.transports.items())
    ]
    failures = [(failure.entry_point, failure.reason) for failure in registry.failures]
    sections = {"compute backends": backends, "transports": transports, "plugins that failed to load": failures}
    for title, rows in sections.items():
        if rows:
            yield title
            yield indent(render_table(rows), "  ")


def _usable(plugin: ComputeBackend | TransportPlugin) -> str:
    from rpc_backend.registry import probe_of

    probe = probe_of(plugin)
    return "usable" if probe.usable else f"not usable: {probe.reason}"


if __name__ == "__main__":
    main()
