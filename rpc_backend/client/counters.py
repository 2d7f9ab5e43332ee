"""What a connection sent and received, per command.

Belongs here: the counts. Must not be here: printing them.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, replace


@dataclass(slots=True)
class CommandCounts:
    """Calls of one command and the bytes of its messages, headers included."""

    calls: int = 0
    nbytes_out: int = 0
    nbytes_in: int = 0


class Counters:
    """Counts per command name. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commands: dict[str, CommandCounts] = {}

    def sent(self, command: str, nbytes: int) -> None:
        """Count one request."""
        with self._lock:
            counts = self._commands.setdefault(command, CommandCounts())
            counts.calls += 1
            counts.nbytes_out += nbytes

    def received(self, command: str, nbytes: int) -> None:
        """Count the bytes of one answer."""
        with self._lock:
            self._commands.setdefault(command, CommandCounts()).nbytes_in += nbytes

    def snapshot(self) -> dict[str, CommandCounts]:
        """Return the counts so far, by command name."""
        with self._lock:
            return {name: replace(counts) for name, counts in self._commands.items()}

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return the counts so far as plain numbers, for JSON."""
        return {name: asdict(counts) for name, counts in self.snapshot().items()}
