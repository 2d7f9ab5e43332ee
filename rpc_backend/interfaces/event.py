"""A point in a stream that others can wait for.

Belongs here: the event of any device. Must not be here: how a stream comes to say that the point is passed.
"""

from __future__ import annotations

from concurrent.futures import Future

from rpc_backend.errors import DeadlineError


def passed() -> Future[None]:
    """Return the future of a point that is passed."""
    future: Future[None] = Future()
    future.set_result(None)
    return future


class Event:
    """Stands for the point at which a stream recorded it last. Any thread may call it.

    The point is passed when the device has *finished* all that was queued before it; a new event is passed.
    """

    def __init__(self) -> None:
        self._passed = passed()

    @property
    def passed(self) -> Future[None]:
        """The future of the point; it raises the error of the work before it."""
        return self._passed

    @property
    def done(self) -> bool:
        """Whether the point is passed."""
        return self._passed.done()

    def synchronize(self, timeout_s: float = 600.0) -> None:
        """Return when the point is passed.

        Raises:
            DeadlineError: it took longer.
            RpcBackendError: the error of the work before it.
        """
        try:
            self._passed.result(timeout_s)
        except TimeoutError:
            if self._passed.done():
                raise
            raise DeadlineError(f"an event was not passed within {timeout_s:g} s") from None

    def mark(self, point: Future[None]) -> None:
        """Stand for another point: what `Stream.record` calls."""
        self._passed = point

    def close(self) -> None:
        """Give back what the event holds; whoever waits for it already is not disturbed. A second call does nothing."""
