"""A stream of this process that works on a thread of its own, so that several devices compute at the same time.

Belongs here: the order of queued work and where its errors come out. Must not be here: what the work is (`inner`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TypeVar

from rpc_backend.errors import DeadlineError, DeviceError, ErrorContext, RpcBackendError
from rpc_backend.graph import Tensor
from rpc_backend.interfaces.device import Plan, Stream
from rpc_backend.interfaces.event import Event
from rpc_backend.interfaces.task import Task, TaskRun

Result = TypeVar("Result")


class QueuedStream(Stream):
    """Queues what it is asked and does it on `inner`, one after another. Its thread starts with the first work.

    `inner` does each thing at once (see `SerialStream`); only this stream may use it. What is asked to be done now
    (`get_tensor`, `copy_tensor`, `synchronize`) waits for its turn, for at most `timeout_s`. Callbacks of futures run
    on the thread of the stream.
    """

    def __init__(self, inner: Stream, timeout_s: float = 600.0) -> None:
        self.device = inner.device
        self._inner = inner
        self._timeout_s = timeout_s
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._n_open = 0
        self._turn = threading.Lock()  # whoever uses `inner`
        self._error: Exception | None = None  # of work that has no future; used by whoever has the turn
        self._thread: threading.Thread | None = None
        self._closed = False

    def set_tensor(self, tensor: Tensor, data: memoryview, offset_bytes: int = 0) -> None:
        copied = memoryview(bytes(data))
        self._queue(lambda: self._inner.set_tensor(tensor, copied, offset_bytes))

    def get_tensor(self, tensor: Tensor, out: memoryview, offset_bytes: int = 0) -> None:
        self._wait(self._ask(lambda: self._inner.get_tensor(tensor, out, offset_bytes)))

    def get_tensor_async(self, tensor: Tensor, out: memoryview, offset_bytes: int = 0) -> None:
        self._queue(lambda: self._inner.get_tensor(tensor, out, offset_bytes))

    def copy_tensor(self, source: Tensor, target: Tensor) -> bool:
        return self._wait(self._ask(lambda: self._inner.copy_tensor(source, target)))

    def copy_tensor_async(self, source_stream: Stream, source: Tensor, target_stream: Stream, target: Tensor) -> bool:
        """Copy from or to any other stream of this process; a stream of another kind has to offer it itself."""
        if not (isinstance(source_stream, QueuedStream) and isinstance(target_stream, QueuedStream)):
            return False
        target_stream.set_tensor_when(target, source_stream.fetch_tensor(source))
        return True

    def fetch_tensor(self, tensor: Tensor) -> Future[memoryview]:
        return self._ask(lambda: self._fetched(tensor))

    def set_tensor_when(self, tensor: Tensor, data: Future[memoryview]) -> None:
        self._queue(lambda: self._inner.set_tensor(tensor, self._wait(data)))

    def compute(self, plan: Plan) -> None:
        self._queue(lambda: self._compute(plan))

    def submit(self, task: Task, run: TaskRun) -> Future[list[memoryview]]:
        return self._ask(lambda: self._inner.submit(task, run).result())

    def submit_here(self, task: Task, run: TaskRun) -> Future[list[memoryview]]:
        """As `submit`, but on the caller's thread and before it returns, if nothing is queued: no thread to wake."""
        with self._lock:
            self._check_open()
            is_idle = self._n_open == 0
            self._n_open += is_idle
        if not is_idle:
            return self.submit(task, run)
        future: Future[list[memoryview]] = Future()
        self._answer(lambda: self._inner.submit(task, run).result(), future)
        return future

    def record(self, event: Event) -> None:
        point: Future[None] = Future()
        event.mark(point)
        self._put(lambda: self._pass(point))

    def wait(self, event: Event) -> None:
        point = event.passed
        self._queue(lambda: self._wait(point))

    def synchronize(self) -> None:
        self._wait(self._ask(self._inner.synchronize))

    def close(self) -> None:
        """Finish what is queued and end the thread.

        Raises:
            DeadlineError: it took longer than `timeout_s`; the thread ends with the last of it.
        """
        with self._lock:
            is_first, self._closed = not self._closed, True
            if is_first and self._thread is not None:
                self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(self._timeout_s)
            if self._thread.is_alive():
                raise self._late()
        if is_first:
            self._inner.close()

    def _ask(self, action: Callable[[], Result]) -> Future[Result]:
        """Queue work with a result; an error of work before it comes out instead, once."""
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()  # queued work cannot be taken back
        self._put(lambda: self._answer(action, future))
        return future

    def _queue(self, action: Callable[[], object]) -> None:
        """Queue work without a result; it is left out if such work before it failed."""
        self._put(lambda: self._do(action))

    def _put(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._check_open()
            self._n_open += 1
            if self._thread is None:
                name = f"stream-{self.device.info.name}"
                self._thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
                self._thread.start()
                weakref.finalize(self, self._jobs.put, None)
            self._jobs.put(job)

    def _answer(self, action: Callable[[], Result], future: Future[Result]) -> None:
        try:
            with self._my_turn():
                error, self._error = self._error, None
                if error is not None:
                    raise error
                result = action()
        except BaseException as error:
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            future.set_result(result)

    def _do(self, action: Callable[[], object]) -> None:
        with self._my_turn():
            if self._error is None:
                try:
                    action()
                except Exception as error:
                    self._error = error

    def _pass(self, point: Future[None]) -> None:
        """An error before the point is raised there, and stays that of the stream as well."""
        with self._my_turn():
            error = self._error
        if error is None:
            point.set_result(None)
        else:
            point.set_exception(error)

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        try:
            with self._turn:
                yield
        finally:
            with self._lock:
                self._n_open -= 1

    def _compute(self, plan: Plan) -> None:
        try:
            self._inner.compute(plan)
        except RpcBackendError as error:  # it may come out at another device, which waits for a result
            error.located(device=self.device.info.name)
            raise

    def _fetched(self, tensor: Tensor) -> memoryview:
        result = memoryview(bytearray(tensor.nbytes))
        self._inner.get_tensor(tensor, result)
        return result

    def _wait(self, future: Future[Result]) -> Result:
        if not wait([future], self._timeout_s).done:
            raise self._late()
        return future.result()

    def _late(self) -> DeadlineError:
        context = ErrorContext(device=self.device.info.name)
        return DeadlineError(f"queued work did not finish within {self._timeout_s:g} s", context=context)

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError("the stream is closed", context=ErrorContext(device=self.device.info.name))


def _work(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it holds the stream, which ends this thread when nobody else holds it
