"""A worker without process, thread or socket: every call runs before it returns.

Belongs here: the double. Must not be here: faults of the network (`memory_channel`) or of devices (`devices`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import TypeVar

from rpc_backend.client.connection import Connection, greet
from rpc_backend.client.dispatcher import Dispatcher
from rpc_backend.graph import op_table_digest
from rpc_backend.interfaces import Device
from rpc_backend.protocol import Limits, own_greeting
from rpc_backend.settings import Settings
from rpc_backend.testing.memory_channel import MemoryNetwork
from rpc_backend.worker import WorkerConfig
from rpc_backend.worker.lanes import DeviceLane
from rpc_backend.worker.peer_link import Dial
from rpc_backend.worker.service import Service

Item = TypeVar("Item")


class InlineLane(DeviceLane[Item]):
    """Runs an item when it is put; while `held`, keeps it instead until `release`."""

    def __init__(self, name: str, run: Callable[[Item], None], wait_s: Callable[[Item], float]) -> None:
        super().__init__(name, run, wait_s)
        self.held = False
        self._is_running = False

    def start(self) -> None:
        """There is no thread."""

    def put(self, owner: Hashable, item: Item) -> None:
        super().put(owner, item)
        if not self.held:
            self.release()

    def wake(self, owner: Hashable) -> None:
        super().wake(owner)
        if not self.held:
            self.release()

    def release(self) -> None:
        """Run what was kept and need not wait, and hold no longer."""
        self.held = False
        if self._is_running:
            return
        self._is_running = True
        try:
            while (item := self._queue.take()) is not None:
                self._run(item)
        finally:
            self._is_running = False


class InlineWorker:
    """A service with inline lanes at the end of a memory network; `lanes` has one per device.

    `dial` connects it to other workers; without one it cannot send to them.
    """

    def __init__(self, devices: Sequence[Device], config: WorkerConfig | None = None, dial: Dial | None = None) -> None:
        self.lanes: list[InlineLane] = []
        self.network = MemoryNetwork(immediate=True)
        self.service = Service(
            config or WorkerConfig(()),
            devices,
            "inline",
            dial=dial and (lambda place, came, lost: dial(place, self._apart(came), self._apart(lost))),
            make_lane=self._make_lane,
            spawn=_run_now,
            pause=_do_not_wait,
        )
        self.service.prepare()
        self.service.start()
        self.service.attach(
            self.network.listen(on_message=self.service.on_message, on_peer_lost=self.service.on_peer_lost)
        )

    def connect(self, settings: Settings | None = None, name: str = "inline") -> Connection:
        """Open a session, as `rpc_backend.connect` does; `name` is the endpoint that the worker seems to be at."""
        settings = settings or Settings()
        dispatcher = Dispatcher(name, settings, Limits())
        dispatcher.attach(self.network.connect(on_message=dispatcher.on_message, on_lost=dispatcher.on_lost))
        return greet(dispatcher, own_greeting(op_table_digest(), "inline", proto_minor=settings.proto_minor), settings)

    def close(self) -> None:
        """Close the devices."""
        self.service.close()

    def __enter__(self) -> InlineWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_lane(self, name: str, run: Callable[[Item], None], wait_s: Callable[[Item], float]) -> InlineLane[Item]:
        lane = InlineLane(name, self._apart(run), wait_s)
        self.lanes.append(lane)
        return lane

    def _apart(self, call: Callable[[Item], None]) -> Callable[[Item], None]:
        """Return what a thread of its own would call: what it sends is received once it has let go of its locks."""

        def gathered(item: Item) -> None:
            with self.network.gathered():
                call(item)

        return gathered


def _run_now(name: str, body: Callable[[], None]) -> None:
    body()


def _do_not_wait(seconds: float) -> None:
    """No time passes in one thread."""
