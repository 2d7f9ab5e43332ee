"""Several workers in one thread that can connect to each other.

Belongs here: their endpoints and the connections between them. Must not be here: one worker (`inline_worker`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rpc_backend.client.connection import Connection
from rpc_backend.errors import ConnectError
from rpc_backend.interfaces import Channel, Device, OnLost, OnMessage
from rpc_backend.protocol import Endpoint
from rpc_backend.settings import Settings
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.testing.memory_channel import MemoryChannel
from rpc_backend.worker import WorkerConfig


class InlineWorkers:
    """Workers at loopback endpoints, a list of devices for each.

    `dialled` are the endpoints that workers tried to connect to; `refuses` makes all further connections fail.
    """

    def __init__(self, devices: Sequence[Sequence[Device]], configs: Sequence[WorkerConfig] | None = None) -> None:
        self.endpoints = [f"tcp://127.0.0.1:{number}" for number in range(1, len(devices) + 1)]
        self.dialled: list[str] = []
        self._links: list[tuple[InlineWorker, MemoryChannel]] = []
        self.refuses = False
        chosen = [WorkerConfig(())] * len(devices) if configs is None else configs
        self.workers = [
            InlineWorker(each, config, self._dial) for each, config in zip(devices, chosen, strict=True)
        ]  # fmt: skip

    def connect(self, index: int, settings: Settings | None = None) -> Connection:
        """Open a session with a worker, at its endpoint."""
        return self.workers[index].connect(settings, self.endpoints[index])

    def cut_links(self) -> None:
        """Cut all connections between workers."""
        links, self._links = self._links, []
        for worker, channel in links:
            worker.network.cut(channel)

    def _dial(self, endpoint: Endpoint, on_message: OnMessage, on_lost: OnLost) -> Channel:
        self.dialled.append(str(endpoint))
        if self.refuses or str(endpoint) not in self.endpoints:
            raise ConnectError(f"cannot connect to {endpoint}: nobody listens there")
        worker = self.workers[self.endpoints.index(str(endpoint))]
        channel = worker.network.connect(on_message=on_message, on_lost=on_lost)
        self._links.append((worker, channel))
        return channel
