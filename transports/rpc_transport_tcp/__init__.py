"""The transport plugin of `tcp://` and `ipc://`: payloads travel inline as ZeroMQ frames."""

from __future__ import annotations

from collections.abc import Callable

from rpc_backend.plugin_api import Probe, Transport, TransportPlugin, hookimpl

SCHEMES = ("tcp", "ipc")


def _probe() -> Probe:
    return Probe(True)


def _create() -> Transport:
    from rpc_transport_tcp.transport import InlineTransport

    return InlineTransport()


@hookimpl
def rpc_register_transports(register: Callable[[TransportPlugin], None]) -> None:
    """Register the transport of both schemes."""
    register(TransportPlugin("tcp", SCHEMES, _probe, _create))
