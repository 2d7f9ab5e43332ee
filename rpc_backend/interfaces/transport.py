"""The noun of a transport: how endpoints of its schemes are bound and connected.

Belongs here: the abstract class and what it may know of an endpoint. Must not be here: one transport's rules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol


class EndpointParts(Protocol):
    """An endpoint as a transport sees it; `protocol.Endpoint` is one."""

    @property
    def scheme(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def path(self) -> str: ...


class Transport(ABC):
    """Turns endpoints into the addresses of the sockets that carry messages; payloads travel inline.

    `schemes` are those it serves. Methods may wait for name resolution; they run while connecting or starting
    a worker only.
    """

    name: str
    schemes: tuple[str, ...]

    @abstractmethod
    def listen_address(self, endpoint: EndpointParts) -> str:
        """Return the ZeroMQ address to bind.

        Raises:
            EndpointError: the host is not an address of this machine, or the path cannot be used.
            ConfigError: something else already serves there and binding would not notice.
        """

    @abstractmethod
    def connect_addresses(self, endpoint: EndpointParts) -> Sequence[str]:
        """Return the ZeroMQ addresses to try, in order, at least one.

        Raises:
            ConnectError: the name cannot be resolved.
        """
