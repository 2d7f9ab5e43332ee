"""Is a worker that says nothing still alive?

Belongs here: the decision, as a pure object without a clock. Must not be here: sending, waiting.

The fabric's heartbeats are answered by the worker's sockets and find dead hosts and stopped processes. This
finds a process whose own I/O thread hangs: a caller that waits asks with PING, which a live one answers at once.
"""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """What a waiting caller should do."""

    WAIT = "wait"
    ASK = "ask"
    LOST = "lost"


class Pulse:
    """Judges silence. Times are in seconds of one monotonic clock; not safe for threads."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._heard_s = float("-inf")
        self._asked_s: float | None = None

    @property
    def interval_s(self) -> float:
        """How often a waiting caller should ask for a verdict."""
        return self.timeout_s / 10

    def heard(self, now_s: float) -> None:
        """Something came from the worker."""
        self._heard_s = now_s
        self._asked_s = None

    def judge(self, waiting_since_s: float, now_s: float) -> Verdict:
        """Say what a caller should do that waits since `waiting_since_s`.

        A question goes out after 0.4 of the timeout, and as much is the time to answer it; callers ask at
        least every `interval_s`, so that a worker is lost within the timeout.
        """
        patience_s = 0.4 * self.timeout_s
        if self._asked_s is not None:
            return Verdict.LOST if now_s - self._asked_s > patience_s else Verdict.WAIT
        if now_s - max(self._heard_s, waiting_since_s) < patience_s:
            return Verdict.WAIT
        self._asked_s = now_s
        return Verdict.ASK
