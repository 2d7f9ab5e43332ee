"""The noun of a gateway: clients that speak another protocol, as clients of this worker.

Belongs here: the abstract class. Must not be here: any protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from rpc_backend.interfaces.channel import Channel, OnLost, OnMessage

LocalDial = Callable[[OnMessage, OnLost], Channel]
"""Opens a channel to the worker of this process: a client like any other, with a session of its own after HELLO.

Its `on_message` runs on the thread that answers and must not send from there. Frames that were sent must not change
any more. Raises WorkerLostError if the worker is closing."""


class Gateway(ABC):
    """Listens with a protocol of its own and translates what comes into messages of channels that it dials.

    So every client has a session, and is held to the bounds and checks of all others. Any thread may call any method.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The endpoint as text, with the port that was picked."""

    @abstractmethod
    def start(self) -> None:
        """Listen, and serve from now on.

        Raises:
            ConfigError: the endpoint is in use.
            EndpointError: it cannot be bound.
        """

    @abstractmethod
    def close(self) -> None:
        """Cut all clients and listen no more. A second call does nothing."""
