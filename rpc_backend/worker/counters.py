"""Counts of commands, for STATS.

Belongs here: the counts. Must not be here: printing them.
"""

from __future__ import annotations

import threading
import time

from rpc_backend.protocol.records import Stats

UNKNOWN = "UNKNOWN"
"""The name under which commands with an unknown code are counted."""


class Counters:
    """Calls and bytes of each command since the worker started. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started_s = time.monotonic()
        self._commands: dict[str, list[int]] = {}

    def count(self, command: str, *, calls: int = 0, nbytes_in: int = 0, nbytes_out: int = 0) -> None:
        """Add to the counts of a command."""
        with self._lock:
            counts = self._commands.setdefault(command, [0, 0, 0])
            counts[0] += calls
            counts[1] += nbytes_in
            counts[2] += nbytes_out

    def received_nbytes(self) -> int:
        """Return the bytes of all commands so far."""
        with self._lock:
            return sum(nbytes_in for _, nbytes_in, _ in self._commands.values())

    def snapshot(self, sessions: int) -> Stats:
        """Return the counts so far, and the number of open sessions that the caller knows."""
        with self._lock:
            commands = {name: list(counts) for name, counts in self._commands.items()}
        return Stats(commands, sessions, time.monotonic() - self._started_s)
