"""One run of a graph that was started: what its user holds.

Belongs here: waiting and results. Must not be here: how the run gets done (`pipeline`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any

import numpy.typing as npt

from rpc_backend.errors import DeadlineError, ErrorContext, GraphError
from rpc_backend.graph import Tensor
from rpc_backend.scheduler.handover import Given
from rpc_backend.scheduler.values import as_array, check_readable, names

Outputs = Mapping[Tensor, memoryview]


class Run:
    """A run that was started, and its outputs when it is done. Any thread may use it.

    `future` is done when every device is, or fails with the first error. It cannot be cancelled. Its callbacks run on
    whatever thread brought the end and must not block. `given` is what the run gives to a later one: it can be taken
    at once, or else is to be discarded.
    """

    def __init__(self, outputs: tuple[Tensor, ...], timeout_s: float, where: Callable[[], str]) -> None:
        """`where` says what the run waits for, if it is late."""
        self.future: Future[None] = Future()
        self.future.set_running_or_notify_cancel()
        self._names = outputs
        self._timeout_s = timeout_s
        self._where: Callable[[], str] | None = where
        self._outputs: Outputs = {}
        self.given: dict[Tensor, Given] = {}

    @property
    def is_done(self) -> bool:
        return self.future.done()

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the run is done; the time limit is the scheduler's if none is given.

        Raises:
            DeadlineError: it took longer; it goes on.
            RpcBackendError: what went wrong, with device and worker.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if not self.is_done_within(limit_s):
            where = self._where
            context = ErrorContext(device="" if where is None else where())
            raise DeadlineError(f"the run did not finish within {limit_s:g} s", context=context)
        self.future.result()

    def is_done_within(self, timeout_s: float) -> bool:
        """Wait for at most so long; say whether the run has ended, well or not."""
        with suppress(FutureTimeoutError):
            self.future.exception(timeout_s)
        return self.future.done()

    def output(self, tensor: Tensor) -> npt.NDArray[Any]:
        """Return an output of a run that is done: the bytes that came, not a copy; they may be read-only.

        Shapes: `ne` reversed, in the tensor's element type (BF16 as uint16); a quantised tensor comes as flat bytes.

        Raises:
            GraphError: no output of this graph, a tensor with gaps, or the run is not done.
            RpcBackendError: the run failed.
        """
        if tensor not in self._names:
            raise GraphError(f"{tensor} is no output of this graph; outputs: {names(self._names)}")
        check_readable(tensor)
        if not self.future.done():
            raise GraphError(f"there is no {tensor} to read: the run is not done; wait for it")
        self.future.result()
        return as_array(tensor, self._outputs[tensor])

    def succeed(self, outputs: Outputs) -> None:
        """End the run; for the scheduler."""
        self._outputs = outputs
        self._where = None  # it holds the inputs
        self.future.set_result(None)

    def fail(self, error: BaseException) -> None:
        """End the run with an error; for the scheduler."""
        self._where = None
        self.future.set_exception(error)
