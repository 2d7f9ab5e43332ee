"""The payload transport `rdma`: payloads travel through registered memory, beside the fabric."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rpc_backend.plugin_api import PayloadPlugin, PayloadTransport, Probe, hookimpl

NAME = "rdma"


def _probe() -> Probe:
    from rpc_transport_rdma.device import missing_part

    reason = missing_part()
    return Probe(not reason, reason)


def _create(extra: Mapping[str, str]) -> PayloadTransport:
    from rpc_transport_rdma.transport import create

    return create(extra)


@hookimpl
def rpc_register_payloads(register: Callable[[PayloadPlugin], None]) -> None:
    """Register the transport."""
    register(PayloadPlugin(NAME, _probe, _create))
