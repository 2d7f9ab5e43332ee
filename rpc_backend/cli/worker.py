"""`zmq-rpc-worker`: serve the devices of this machine.

Belongs here: the command, its options and its output. Must not be here: serving.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, NoReturn

import click
from click.core import ParameterSource
from platformdirs import user_cache_path

from rpc_backend.cli.console import DISTRIBUTION, debug_option, run_cli, switches_help
from rpc_backend.cli.values import ByteSize
from rpc_backend.text import render_table

if TYPE_CHECKING:
    from rpc_backend.hookspecs import ComputeBackend, GatewayPlugin, PayloadPlugin, TransportPlugin
    from rpc_backend.interfaces import Gateway, LocalDial, PayloadTransport
    from rpc_backend.registry import Registry

_LOG = logging.getLogger(__name__)
_SIGNAL_POLL_S = 0.25
_GATEWAY = "ggml"
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
@click.option(
    "--cache",
    "cache_folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    metavar="DIR",
    help="Keep uploaded weights in this folder, so that they need not be sent again; workers may share it.",
)
@click.option(
    "--cache-limit",
    "cache_limit_nbytes",
    type=ByteSize(low=0),
    default=None,
    help="What the cache may take; the weights used longest ago go first. Without it there is no limit.",
)
@click.option(
    "--models",
    "model_folders",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    metavar="DIR",
    help="Take weights from the GGUF files below this folder instead of the wire; repeatable.",
)
@click.option(
    "--transport",
    default=None,
    metavar="NAME[:KEY=VALUE,…]",
    help="How large payloads travel with clients and workers that can: tcp, rdma, rdma:provider=soft.  "
    "[ZMQ_RPC_TRANSPORT]",
)
@click.option(
    "--peer-allow",
    "peer_allow",
    multiple=True,
    metavar="ENDPOINT",
    help="A worker that this one may send tensors to if a client names it; repeatable, or none.  "
    "[default: every worker that the client names and that knows the client]",
)
@click.option(
    "--ticket-timeout",
    "ticket_timeout_s",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a step waits for a tensor of another worker.",
)
@click.option(
    "--gateway",
    "gateways",
    multiple=True,
    metavar="[NAME=]ENDPOINT",
    help="Also serve clients of another protocol at tcp://host:port; NAME ggml, the default, is llama.cpp's.",
)
@click.option("--insecure", is_flag=True, help="Serve other machines without keys: anyone who can connect may use it.")
@click.option("--proto-minor", type=int, default=-1, metavar="N", help="Speak as an older worker of this minor.")
@click.option(
    "--warm",
    is_flag=True,
    help="Compile what the devices need for models ahead of time and exit; with --listen serve once that is done.",
)
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
    cache_folder: Path | None,
    cache_limit_nbytes: int | None,
    model_folders: tuple[Path, ...],
    transport: str | None,
    peer_allow: tuple[str, ...],
    ticket_timeout_s: float,
    gateways: tuple[str, ...],
    insecure: bool,
    proto_minor: int,
    warm: bool,
    list_only: bool,
    exit_on_stdin_close: bool,
    log_level: str,
) -> None:
    """Serve the compute devices of this machine to clients.

    Prints "ready ENDPOINT" on a line of its own for each endpoint once it serves, then "gateway ENDPOINT" for each
    gateway. Ctrl-C or SIGTERM stops it.
    """
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    from rpc_backend.registry import load_registry, parse_device  # heavy: not for --help

    if cache_limit_nbytes is not None and cache_folder is None:
        raise click.UsageError("--cache-limit needs --cache DIR")
    registry = load_registry()
    if list_only:
        click.echo("\n".join(listing(registry)))
        return
    from rpc_backend.protocol import parse_workers
    from rpc_backend.settings import from_environment
    from rpc_backend.worker import Worker, WorkerConfig
    from rpc_backend.worker.dial_rules import parse_allowed
    from rpc_backend.worker.freed_memory import UploadWatch, keep_freed_memory
    from rpc_backend.worker.lifetime import watch_stdin

    keep_freed_memory()
    settings = from_environment()
    endpoints = tuple(parse_workers(listen, listen=True))
    payloads = _payloads(registry, settings.transport if transport is None else transport)
    stop = _stop_on_signals()
    asked = [parse_device(text, threads, settings) for text in backends]
    devices = [device for name, options in asked for device in registry.create_devices(name, options)]
    if warm:
        for device in devices:
            click.echo(f"warm {device.warm()}")
        if click.get_current_context().get_parameter_source("listen") is ParameterSource.DEFAULT:
            for device in devices:
                device.close()
            return
    config = WorkerConfig(
        endpoints,
        {} if mem_nbytes is None else dict.fromkeys(range(len(devices)), mem_nbytes),
        heartbeat_ms=settings.heartbeat_timeout_ms,
        insecure=insecure,
        proto_minor=proto_minor,
        peer_allow=parse_allowed(peer_allow),
        ticket_timeout_s=ticket_timeout_s,
        load_opt=settings.load_opt,
        load_profile=settings.loadprof,
        cache_folder=cache_folder,
        cache_limit_nbytes=cache_limit_nbytes,
        model_folders=model_folders,
        index_folder=(cache_folder or user_cache_path("zmq-rpc-backend")) / "models",
        names_file=_names_file(cache_folder, model_folders) if gateways else None,
    )
    build = version(DISTRIBUTION)
    server = Worker(config, devices, registry.transport_for, build=build, payloads=payloads)
    with server, ExitStack() as stack:
        opened = [_open_gateway(registry, text, server.connect_local, insecure, stack) for text in gateways]
        if exit_on_stdin_close:
            watch_stdin(stop.set)
        for endpoint in server.endpoints:
            click.echo(f"ready {endpoint}")
        for gateway in opened:
            click.echo(f"gateway {gateway.name}")
        # A signal that another thread took does not wake this one, and its handler runs here: look now and then.
        uploads = UploadWatch(lambda: server.received_nbytes)
        while not stop.wait(_SIGNAL_POLL_S):
            uploads.look()


def _names_file(cache_folder: Path | None, model_folders: Sequence[Path]) -> Path | None:
    """Return where the names of weights are kept that clients of gateways ask for; None if there are no weights."""
    if cache_folder is None and not model_folders:
        return None
    return (cache_folder or user_cache_path("zmq-rpc-backend")) / "names"


def _open_gateway(registry: Registry, text: str, dial: LocalDial, insecure: bool, stack: ExitStack) -> Gateway:
    """Start the gateway of `[NAME=]ENDPOINT`; it closes with `stack`."""
    from rpc_backend.protocol import check_bind, parse_endpoint

    name, equals, place = text.partition("=")
    endpoint = parse_endpoint(place if equals else text, listen=True)
    check_bind(endpoint, insecure=insecure)
    gateway = registry.create_gateway(name if equals else _GATEWAY, endpoint, dial)
    stack.callback(gateway.close)
    gateway.start()
    return gateway


def _payloads(registry: Registry, text: str) -> list[PayloadTransport]:
    """Return what carries payloads beside the fabric; where it cannot, say which part is missing."""
    from rpc_backend.registry import AbsentPayloads

    found = registry.payload_transports(text)
    for absent in (item for item in found if isinstance(item, AbsentPayloads)):
        _LOG.warning("payloads travel inside the fabric, %s cannot be used: %s", absent.name, absent.reason)
    return found


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
    payloads = [(name, _usable(plugin)) for name, plugin in sorted(registry.payloads.items())]
    gateways = [(name, _usable(plugin)) for name, plugin in sorted(registry.gateways.items())]
    failures = [(failure.entry_point, failure.reason) for failure in registry.failures]
    sections = {
        "compute backends": backends,
        "transports": transports,
        "transports of payloads": payloads,
        "gateways": gateways,
        "plugins that failed to load": failures,
    }
    for title, rows in sections.items():
        if rows:
            yield title
            yield indent(render_table(rows), "  ")


def _usable(plugin: ComputeBackend | TransportPlugin | PayloadPlugin | GatewayPlugin) -> str:
    from rpc_backend.registry import probe_of

    probe = probe_of(plugin)
    return "usable" if probe.usable else f"not usable: {probe.reason}"


if __name__ == "__main__":
    main()
