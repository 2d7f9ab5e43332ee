"""One thread per device that runs the commands of all sessions on it.

Belongs here: the thread and its end. Must not be here: what a command does, or waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from rpc_backend.worker.fair_queue import FairQueue

Item = TypeVar("Item")


def _never_waits(item: object) -> float:
    return 0.0


class DeviceLane(Generic[Item]):
    """Runs items one at a time on its own thread; owners take turns. `run` must not raise.

    `wait_s` is that of `FairQueue`: an owner whose first item must wait is skipped, and looked at again when `wake` is
    called or its time is up. It is called under the lane's lock, must be quick, must not raise, and may call nothing
    that waits for the lane.
    """

    def __init__(self, name: str, run: Callable[[Item], None], wait_s: Callable[[Item], float] = _never_waits) -> None:
        self._run = run
        self._queue: FairQueue[Item] = FairQueue(wait_s)
        self._changed = threading.Condition()
        self._closed = False
        # A daemon: a kernel that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, owner: Hashable, item: Item) -> None:
        """Queue an item behind the others of its owner."""
        with self._changed:
            self._queue.put(owner, item)
            self._changed.notify()

    def wake(self, owner: Hashable) -> None:
        """Look again at the first item of an owner: what it waits for may have come."""
        with self._changed:
            self._queue.wake(owner)
            self._changed.notify()

    def drop(self, owner: Hashable) -> list[Item]:
        """Remove and return what an owner has queued; the running item goes on."""
        with self._changed:
            return self._queue.drop(owner)

    def close(self, timeout_s: float) -> bool:
        """End after the running item, forget the queued ones; False = still running after `timeout_s`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while (item := self._next()) is not None:
            self._run(item)
            del item  # payload frames must not live until the next item comes

    def _next(self) -> Item | None:
        with self._changed:
            while not self._closed:
                item = self._queue.take()
                if item is not None:
                    return item
                self._changed.wait(self._queue.idle_s())
        return None
