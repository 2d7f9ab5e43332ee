"""ggml-rpc, both ways: a gateway through which llama.cpp's clients use a worker, and its servers as our devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rpc_backend.plugin_api import (
    Device,
    DeviceProvider,
    EndpointParts,
    Gateway,
    GatewayPlugin,
    LocalDial,
    Probe,
    ProviderOptions,
    hookimpl,
)

NAME = "ggml"


def _probe() -> Probe:
    return Probe(True)


def _create_gateway(endpoint: EndpointParts, dial: LocalDial) -> Gateway:
    from rpc_transport_ggml.gateway import GgmlGateway

    return GgmlGateway(endpoint, dial)


def _open_devices(endpoint: EndpointParts, options: ProviderOptions) -> Sequence[Device]:
    from rpc_transport_ggml.device import open_devices

    return open_devices(endpoint, options)


@hookimpl
def rpc_register_gateways(register: Callable[[GatewayPlugin], None]) -> None:
    """Register the gateway of ggml-rpc."""
    register(GatewayPlugin(NAME, _probe, _create_gateway))


@hookimpl
def rpc_register_device_providers(register: Callable[[DeviceProvider], None]) -> None:
    """Register the devices behind `ggml://host:port`."""
    register(DeviceProvider(NAME, (NAME,), _probe, _open_devices))
