"""Where the time of a load goes: what `ZMQ_RPC_LOADPROF=1` prints.

Belongs here: adding up times, and the line that tells them. Must not be here: what is timed, who prints.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rpc_backend.text import human_nbytes

PREFIX = "zmq-rpc loadprof"
DIGEST, STAGING, WIRE, GAPS = "digest", "staging", "wire", "gaps"


@dataclass(slots=True)
class _Times:
    """The sums of one load. `parts` is in seconds; `commands` has calls and seconds by name."""

    calls: int = 0
    nbytes: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys((DIGEST, STAGING, WIRE, GAPS), 0.0))
    commands: dict[str, list[float]] = field(default_factory=dict)


class LoadProfile:
    """The times of the SET_TENSORs of a load, and of all commands meanwhile. Any thread may call it.

    `began` and `ended` say when a SET_TENSOR goes out and is known to have arrived: `wire` is the time with at least
    one under way, `gaps` the time between with none, less what digests and staging took of it. Who sees a load from
    another side adds its times with `add`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._times = _Times()
        self._n_under_way = 0
        self._busy_since_s = 0.0
        self._prepared_s = 0.0  # of digests and staging, when the last SET_TENSOR had arrived

    @property
    def calls(self) -> int:
        """SET_TENSORs so far."""
        return self._times.calls

    def began(self, nbytes: int) -> None:
        """A SET_TENSOR of `nbytes` bytes goes out."""
        now_s = self.clock()
        with self._lock:
            if self._n_under_way == 0:
                if self._times.calls:
                    prepared_s = self._preparation_s() - self._prepared_s
                    self._times.parts[GAPS] += max(0.0, now_s - self._times.last_s - prepared_s)
                self._busy_since_s = now_s
            self._n_under_way += 1
            self._count(now_s, nbytes)

    def ended(self) -> None:
        """A SET_TENSOR has arrived, or will not."""
        now_s = self.clock()
        with self._lock:
            self._n_under_way -= 1
            self._times.last_s = now_s
            if self._n_under_way == 0:
                self._times.parts[WIRE] += now_s - self._busy_since_s
                self._prepared_s = self._preparation_s()

    def call(self, began_s: float, ended_s: float, nbytes: int) -> None:
        """Count a SET_TENSOR whose times are added part by part."""
        with self._lock:
            self._count(began_s, nbytes)
            self._times.last_s = ended_s

    def add(self, part: str, seconds: float) -> None:
        """Add to a part."""
        with self._lock:
            self._times.parts[part] = self._times.parts.get(part, 0.0) + seconds

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Add the time of a block to a part."""
        started_s = self.clock()
        try:
            yield
        finally:
            self.add(part, self.clock() - started_s)

    @contextmanager
    def timing_command(self, name: str) -> Iterator[None]:
        """Count a command that takes the time of a block."""
        started_s = self.clock()
        try:
            yield
        finally:
            self.command(name, self.clock() - started_s)

    def command(self, name: str, seconds: float) -> None:
        """Count a command and the time it took."""
        with self._lock:
            counts = self._times.commands.setdefault(name, [0, 0.0])
            counts[0] += 1
            counts[1] += seconds

    def take(self, name: str) -> str:
        """Return the line of what was added since the last call; `name` says whose it is."""
        with self._lock:
            times, self._times, self._prepared_s = self._times, _Times(), 0.0
        parts = ", ".join(f"{part} {seconds:.3f} s" for part, seconds in times.parts.items())
        commands = sorted(times.commands.items(), key=lambda item: (-item[1][1], item[0]))
        shown = ", ".join(f"{command} {calls:.0f} calls {seconds:.3f} s" for command, (calls, seconds) in commands)
        return (
            f"{PREFIX} {name}: {times.calls} SET_TENSOR, {human_nbytes(times.nbytes)} in "
            f"{times.last_s - times.first_s:.3f} s; {parts}; commands: {shown or 'none'}"
        )

    def _count(self, began_s: float, nbytes: int) -> None:
        if not self._times.calls:
            self._times.first_s = self._times.last_s = began_s
        self._times.calls += 1
        self._times.nbytes += nbytes

    def _preparation_s(self) -> float:
        return self._times.parts[DIGEST] + self._times.parts[STAGING]
