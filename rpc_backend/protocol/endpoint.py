"""Where a worker is: endpoints, as users write them.

Belongs here: parsing, the canonical text, which endpoints are this machine only. Must not be here: name
resolution, or what a transport makes of an endpoint.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rpc_backend.errors import ConfigError, EndpointError

TCP, IPC = "tcp", "ipc"
ANY_HOST = "*"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_HOST_PORT = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(?::(?P<port>.*))?", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One place to listen or to connect; equal places are equal records, `str()` is the canonical text.

    A scheme uses host and port, or path. `host` has no brackets; `*` listens on all addresses.
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"{self.scheme}://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. Names other than localhost are not resolved: False."""
        if self.scheme == IPC or self.host == "localhost":
            return True
        address = _ip_address(self.host)
        return address is not None and address.is_loopback


def parse_endpoint(text: str, *, listen: bool = False) -> Endpoint:
    """Parse `tcp://host:port`, `tcp://[v6]:port`, `ipc://path`, a bare `host:port`, or `scheme://anything`.

    With `listen`, port 0 (any free port) and the host `*` (all addresses) are allowed.

    Raises:
        EndpointError: it cannot be parsed; the message quotes the text.
    """
    if text != text.strip() or not text or _UNPRINTABLE.search(text):
        raise _bad(text, "it is empty or has spaces around it or unprintable characters in it")
    match = _SCHEME.fullmatch(text)
    scheme, rest = (match[1].lower(), match[2]) if match else (TCP, text)
    if not rest:
        raise _bad(text, "nothing follows the scheme")
    if scheme == IPC:
        return Endpoint(IPC, path=rest)
    try:
        return _parse_host_port(scheme, rest, text, listen)
    except EndpointError:
        if scheme == TCP:
            raise
        return Endpoint(scheme, path=rest)


def parse_workers(workers: str | Sequence[str], *, listen: bool = False) -> list[Endpoint]:
    """Parse a list, or a text with commas, of endpoints; one named twice is one worker.

    Raises:
        EndpointError: one cannot be parsed, or there is none.
    """
    texts = workers.split(",") if isinstance(workers, str) else workers
    found = dict.fromkeys(parse_endpoint(text, listen=listen) for text in texts)
    if not found:
        raise EndpointError("no endpoint given; write for example tcp://127.0.0.1:5555")
    return list(found)


def check_bind(endpoint: Endpoint, *, has_keys: bool = False, insecure: bool = False) -> None:
    """Refuse to serve other machines without keys, unless the user insists.

    Raises:
        ConfigError: naming the endpoint and the remedies.
    """
    if endpoint.is_loopback() or has_keys or insecure:
        return
    raise ConfigError(
        f"{endpoint} is open to other machines and no keys are set; listen on 127.0.0.1, set up keys, "
        "or add --insecure if everyone who can reach it may use this worker"
    )


def _parse_host_port(scheme: str, rest: str, text: str, listen: bool) -> Endpoint:
    match = _HOST_PORT.fullmatch(rest)
    if match is None:
        raise _bad(text, "write host:port, and an IPv6 address in brackets, as in tcp://[::1]:5555")
    return Endpoint(scheme, _parse_host(match, text, listen), _parse_port(match["port"], text, listen))


def _parse_host(match: re.Match[str], text: str, listen: bool) -> str:
    if match["v6"] is not None:
        if not isinstance(_ip_address(match["v6"]), ipaddress.IPv6Address):
            raise _bad(text, f"{match['v6']!r} is not an IPv6 address")
        return match["v6"].lower()
    host = match["name"].lower()
    if host == ANY_HOST and listen:
        return host
    looks_numeric = host.replace(".", "").isdigit()
    if not _NAME.fullmatch(host) or (looks_numeric and _ip_address(host) is None):
        raise _bad(text, f"{match['name']!r} is not a host name or address")
    return host


def _parse_port(digits: str | None, text: str, listen: bool) -> int:
    if not digits:
        raise _bad(text, "the port is missing")
    port = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else -1
    lowest = 0 if listen else 1
    if not lowest <= port <= 65535:
        raise _bad(text, f"the port must be a number from {lowest} to 65535")
    return port


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _bad(text: str, reason: str) -> EndpointError:
    return EndpointError(f"cannot parse the endpoint {text!r}: {reason}")
