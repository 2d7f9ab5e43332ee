"""Endpoints of `tcp://` and `ipc://` as ZeroMQ addresses.

Belongs here: name resolution, and what binding would not notice. Must not be here: sockets that carry messages.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Sequence

from rpc_backend.plugin_api import ConfigError, ConnectError, EndpointError, EndpointParts, Transport

_PROBE_TIMEOUT_S = 1.0
_ANY_HOST = "*"


class InlineTransport(Transport):
    """Sends payloads as frames next to their header."""

    name = "tcp"
    schemes = ("tcp", "ipc")

    def listen_address(self, endpoint: EndpointParts) -> str:
        """As the interface says. A name that has addresses of both IP versions is bound to its first IPv4 one."""
        if endpoint.scheme == "ipc":
            _check_path_is_free(endpoint.path)
            return f"ipc://{endpoint.path}"
        if endpoint.host == _ANY_HOST:
            return f"tcp://*:{endpoint.port}"
        try:
            hosts = _resolve(endpoint)
        except OSError as error:
            raise EndpointError(f"cannot listen on {endpoint}: its host has no address ({error})") from error
        host = next((found for found in hosts if ":" not in found), hosts[0])
        return _address(host, endpoint.port)

    def connect_addresses(self, endpoint: EndpointParts) -> Sequence[str]:
        """As the interface says, in the order of the system's resolver."""
        if endpoint.scheme == "ipc":
            return [f"ipc://{endpoint.path}"]
        try:
            hosts = _resolve(endpoint)
        except OSError as error:
            raise ConnectError(f"cannot connect to {endpoint}: its host has no address ({error})") from error
        return [_address(host, endpoint.port) for host in hosts]


def _resolve(endpoint: EndpointParts) -> list[str]:
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def _address(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _check_path_is_free(path: str) -> None:
    """Refuse a path that binding would silently take away: libzmq unlinks whatever is there."""
    if path.startswith("@"):
        return
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise EndpointError(f"cannot listen on ipc://{path}: {error}") from error
    if not stat.S_ISSOCK(mode):
        raise EndpointError(f"cannot listen on ipc://{path}: a file that is no socket is in the way")
    if _is_served(path):
        raise ConfigError(f"ipc://{path} is already in use, perhaps by another worker; end it or choose another path")


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # a full backlog, a stopped owner: somebody holds it
        return True
