"""How much memory a process takes beside files that it maps and one large buffer that it is meant to fill.

Belongs here: reading `/proc`. Must not be here: what the process does.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import TracebackType

_EVERY_S = 0.02
_RANGE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ")


def own_nbytes(pid: int, filled_nbytes: int = 0) -> int:
    """Return the memory of a process that no file backs, without the buffers of `filled_nbytes` bytes or more.

    The system may join such a buffer with its neighbours: what is larger than it counts whole.
    """
    total = size = 0
    is_shared = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        found = _RANGE.match(line)
        if found:
            size = int(found[2], 16) - int(found[1], 16)
            is_shared = "/dev/zero" in line
            if filled_nbytes and size >= filled_nbytes:
                total += size - filled_nbytes
        elif line.startswith("Rss:" if is_shared else "Anonymous:") and not (filled_nbytes and size >= filled_nbytes):
            total += int(line.split()[1]) * 1024
    return total


class Watch:
    """The most extra memory of a process while a block runs."""

    def __init__(self, pid: int, filled_nbytes: int = 0) -> None:
        self._pid = pid
        self._filled_nbytes = filled_nbytes
        self._before = own_nbytes(pid, filled_nbytes)
        self._most = self._before
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name=f"memory of {pid}", daemon=True)

    @property
    def extra_nbytes(self) -> int:
        """The most so far, above what there was before the block."""
        return self._most - self._before

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            self._most = max(self._most, own_nbytes(self._pid, self._filled_nbytes))
