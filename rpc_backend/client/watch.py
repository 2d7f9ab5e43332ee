"""What happens to a connection now and then, whether anybody waits or not.

Belongs here: the thread, and when it does what. Must not be here: what a deadline or a silence means (`dispatcher`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping

from rpc_backend.client.counters import CommandCounts
from rpc_backend.client.dispatcher import Dispatcher

_JOIN_TIMEOUT_S = 2.0


class Watch:
    """Sees to it that every open request ends in time, and prints counts if the switch asks for it."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        settings = dispatcher.settings
        self._stats_s = settings.stats_ms / 1000 if settings.stats else None
        self._interval_s = dispatcher.interval_s if self._stats_s is None else min(dispatcher.interval_s, self._stats_s)
        self._printed_s = time.monotonic()
        self._printed: Mapping[str, CommandCounts] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"watch {dispatcher.name}", daemon=True)

    def start(self) -> None:
        """Start the thread; it ends by itself when the worker is lost."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. A second call does nothing."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT_S)

    def _loop(self) -> None:
        while not (self._stopped.wait(self._interval_s) or self._dispatcher.is_lost):
            self._dispatcher.check()
            if self._stats_s is not None and time.monotonic() - self._printed_s >= self._stats_s:
                self._print()
        if self._stats_s is not None:
            self._print()

    def _print(self) -> None:
        now_s, counts = time.monotonic(), self._dispatcher.counters.snapshot()
        line = stats_line(self._dispatcher.name, now_s - self._printed_s, counts, self._printed)
        self._printed_s, self._printed = now_s, counts
        if line:
            sys.stderr.write(line + "\n")


def stats_line(
    name: str, seconds: float, counts: Mapping[str, CommandCounts], before: Mapping[str, CommandCounts]
) -> str:
    """Return what passed since `before`, the most frequent commands first; "" if nothing did."""
    rows: list[tuple[int, int, int, str]] = []
    for command, now in counts.items():
        then = before.get(command, CommandCounts())
        calls = now.calls - then.calls
        nbytes_out, nbytes_in = now.nbytes_out - then.nbytes_out, now.nbytes_in - then.nbytes_in
        if calls or nbytes_out or nbytes_in:
            rows.append((calls, nbytes_out, nbytes_in, command))
    if not rows:
        return ""
    rows.sort(key=lambda row: (-row[0], row[3]))
    total = (sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] for row in rows), "all")
    shown = "; ".join(f"{command} {calls} calls {out} B out {in_} B in" for calls, out, in_, command in (*rows, total))
    return f"zmq-rpc stats {name} {seconds:.1f} s: {shown}"
