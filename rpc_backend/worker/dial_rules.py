"""Where a worker may connect to, on behalf of a client.

Belongs here: the rules, of endpoints and of the addresses that names stand for. Must not be here: sockets (`server`),
which endpoints a client announced (`peers`).

A client must not be able to use a worker as a way into the worker's network. So a worker connects only where its list
says, or, without a list, where no harm is known: never to this machine's own addresses unless only this machine can
reach the worker anyway, and never to addresses that belong to no worker.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import replace

from rpc_backend.errors import ConfigError, ConnectError
from rpc_backend.interfaces import Channel, Transport
from rpc_backend.protocol import Endpoint, parse_endpoint, parse_workers
from rpc_backend.protocol.endpoint import IPC, TCP
from rpc_backend.worker.config import WorkerConfig

DIAL_TIMEOUT_MS = 3000
NOBODY = "none"


class DialRules:
    """The rules of one worker."""

    def __init__(self, config: WorkerConfig) -> None:
        self._allowed = config.peer_allow
        self._serves_others = not all(endpoint.is_loopback() for endpoint in config.listen)

    def why_not(self, endpoint: Endpoint) -> str:
        """Return why this worker may not connect to an endpoint, "" if it may as far as is known from its text."""
        if self._allowed is not None:
            return "" if endpoint in self._allowed else "it is not in the list of --peer-allow"
        if endpoint.scheme not in (TCP, IPC):
            return f"only {TCP}:// and {IPC}:// endpoints are connected to without --peer-allow"
        if endpoint.is_loopback():
            return self._why_not_here()
        return self.why_not_address(endpoint.host)

    def why_not_address(self, host: str) -> str:
        """Return why this worker may not connect to an address that a name stands for, "" if it may."""
        if self._allowed is not None:
            return ""
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return ""  # a name, to be judged by its addresses
        plain = getattr(address, "ipv4_mapped", None) or address
        if plain.is_loopback:
            return self._why_not_here()
        if plain.is_link_local or plain.is_multicast or plain.is_unspecified or plain.is_reserved:
            return f"{address} is no address of a worker; --peer-allow can allow it"
        return ""

    def _why_not_here(self) -> str:
        if self._serves_others:
            return (
                "it is on this machine, and this worker serves other machines too; name it by the machine's address, "
                "or allow it with --peer-allow"
            )
        return ""


def parse_allowed(texts: Sequence[str]) -> tuple[Endpoint, ...] | None:
    """Return the list of workers that may be connected to: None if there is none, empty for `none`.

    Raises:
        EndpointError: one cannot be parsed.
        ConfigError: `none` and others.
    """
    if NOBODY not in texts:
        return tuple(parse_workers(texts)) if texts else None
    if len(set(texts)) > 1:
        raise ConfigError(f"--peer-allow {NOBODY} allows nobody; it cannot stand beside endpoints")
    return ()


def dial_checked(
    endpoint: Endpoint, transport: Transport, rules: DialRules, connect_to: Callable[[Endpoint], Channel]
) -> Channel:
    """Connect to one of the addresses of an endpoint that the rules permit.

    A name is looked up once, and what it stands for is judged, so that it cannot stand for something else when it is
    connected to.

    Raises:
        ConnectError: nobody is there, or the rules permit none of the addresses.
    """
    reasons: list[str] = []
    for place in _places(endpoint, transport):
        reason = rules.why_not_address(place.host) if place.host else ""
        if not reason:
            try:
                return connect_to(place)
            except ConnectError as error:
                reason = error.message
        reasons.append(reason)
    raise ConnectError(f"cannot connect to {endpoint}: {'; '.join(reasons)}")


def _places(endpoint: Endpoint, transport: Transport) -> list[Endpoint]:
    if endpoint.scheme != TCP:
        return [endpoint]
    found = [parse_endpoint(address) for address in transport.connect_addresses(endpoint)]
    return [replace(place, scheme=endpoint.scheme) for place in found]
