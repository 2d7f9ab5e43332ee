"""Runs under way: each passes through the stages of its chain, several at a time, in order on every device.

Belongs here: when a stage may be submitted, and what follows from its end. Must not be here: what a stage is made of
(`chain`), or how a device does it.

Each device has a lane: the stages of all runs, in the order in which the runs were started. The first of a lane is
submitted once its carried inputs have come, by whatever thread brings the last of them. So nothing here blocks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from rpc_backend.errors import DeadlineError, DeviceError, ErrorContext, RpcBackendError
from rpc_backend.graph import Tensor
from rpc_backend.interfaces import Device, QueuedStream, Stream, Task, TaskRun
from rpc_backend.scheduler.chain import NOTHING_TAKEN, Chain, Passage
from rpc_backend.scheduler.handover import Given
from rpc_backend.scheduler.run import Run


@dataclass(slots=True, eq=False)
class _Lane:
    """The stages to come on one device. `is_moving`: a thread is submitting its first."""

    device: Device
    stream: Stream
    runs_here: bool
    queue: deque[tuple[Passage, int]]
    is_moving: bool = False

    def submit(self, task: Task, run: TaskRun, *, is_starter: bool) -> Future[list[memoryview]]:
        if is_starter and self.runs_here and isinstance(self.stream, QueuedStream):
            return self.stream.submit_here(task, run)
        return self.stream.submit(task, run)


class Pipeline:
    """All runs under way on the devices of a scheduler."""

    def __init__(self, devices: Sequence[Device], streams: Sequence[Stream], timeout_s: float) -> None:
        """`timeout_s` is the limit for every wait.

        The thread that starts a run works for the first device itself, if that is idle and of this process: there a
        token's embedding is looked up, which takes less time than to wake another thread.
        """
        self.timeout_s = timeout_s
        self._changed = threading.Condition(threading.Lock())
        self._lanes = [
            _Lane(device, stream, index == 0, deque())
            for index, (device, stream) in enumerate(zip(devices, streams, strict=True))
        ]
        self._active: dict[Passage, None] = {}
        self._is_taken = False  # by one run, which visits some device twice
        for index, stream in enumerate(streams):
            stream.on_failure(partial(self._device_failed, index))

    def start(self, chain: Chain, values: Sequence[memoryview], taken: Mapping[Tensor, Given] = NOTHING_TAKEN) -> Run:
        """Start a run and return at once, unless it or one before needs all devices for itself; then when those
        before are done.

        A run takes its place on every device now, so one that takes a tensor keeps those after it waiting for that.

        Raises:
            DeadlineError: they are not done in time.
        """
        run = Run(chain.names, self.timeout_s, lambda: self._where([passage]))
        passage = Passage(chain, values, run, taken)
        for tensor, (device, ticket) in chain.gives.items():
            run.given[tensor] = Given(tensor, device, self._lanes[device].device, passage.tickets[ticket])
        with self._changed:
            if self._is_taken or not chain.overlaps:
                self._wait_idle()
            self._is_taken = not chain.overlaps
            if chain.stages:
                self._active[passage] = None
            for index, stage in enumerate(chain.stages):
                self._lanes[stage.device].queue.append((passage, index))
        # The last one first: it is ready when what it waits for comes, and is out of the way while the first begins.
        self._move(passage, reversed(range(len(chain.stages))), is_starter=True)
        if not chain.stages:
            run.succeed({})
        return run

    def wait_idle(self, chain: Chain | None = None) -> None:
        """Return when no run is under way, or none through `chain` if given.

        Raises:
            DeadlineError: some are still.
        """
        with self._changed:
            self._wait_idle(chain)

    def fail_all(self, reason: str) -> None:
        """Fail every run under way; what was not submitted will not be."""
        with self._changed:
            passages = list(self._active)
        for passage in passages:
            self._fail(passage, DeviceError(reason))

    def _wait_idle(self, chain: Chain | None = None) -> None:
        if not self._changed.wait_for(lambda: not self._passages(chain), self.timeout_s):
            context = ErrorContext(device=self._where(self._passages(chain)))
            raise DeadlineError(f"runs did not finish within {self.timeout_s:g} s", context=context)

    def _passages(self, chain: Chain | None) -> list[Passage]:
        return [passage for passage in self._active if chain is None or passage.chain is chain]

    def _where(self, passages: Iterable[Passage]) -> str:
        """Name the devices that some runs still wait for."""
        devices = {
            stage.device: None
            for passage in passages
            for stage, result in zip(passage.chain.stages, passage.results, strict=True)
            if result is None
        }
        return ", ".join(self._lanes[device].device.info.name for device in devices)

    def _move(self, passage: Passage, stages: Iterable[int], *, is_starter: bool = False) -> None:
        for index in stages:
            self._advance(self._lanes[passage.chain.stages[index].device], is_starter)

    def _advance(self, lane: _Lane, is_starter: bool) -> None:
        """Submit the first stages of a lane as long as they can be; one thread at a time, so that order is kept."""
        while True:
            with self._changed:
                if lane.is_moving or not lane.queue:
                    return
                passage, index = lane.queue[0]
                if passage.n_awaited[index] and passage.error is None:
                    return
                lane.queue.popleft()
                lane.is_moving = True
            try:
                self._submit(lane, passage, index, is_starter)
            finally:
                with self._changed:
                    lane.is_moving = False

    def _submit(self, lane: _Lane, passage: Passage, index: int, is_starter: bool) -> None:
        if passage.error is not None:
            self._is_last(passage)
            return
        stage = passage.chain.stages[index]
        try:
            future = lane.submit(stage.task, passage.task_run(stage), is_starter=is_starter)
        except BaseException as error:
            self._stage_failed(passage, index, error)
            if not isinstance(error, Exception):
                raise
        else:
            future.add_done_callback(partial(self._stage_ended, passage, index))

    def _stage_ended(self, passage: Passage, index: int, future: Future[list[memoryview]]) -> None:
        try:
            results = future.result()
            _check_results(passage.chain.stages[index].task, results)
        except Exception as error:
            self._stage_failed(passage, index, error)
            return
        free: list[int] = []
        with self._changed:
            passage.results[index] = results
            for target in passage.chain.stages[index].feeds:
                passage.n_awaited[target] -= 1
                if not passage.n_awaited[target]:
                    free.append(target)
        self._move(passage, free)
        if self._is_last(passage) and passage.error is None:
            passage.run.succeed(passage.outputs())

    def _stage_failed(self, passage: Passage, index: int, error: BaseException) -> None:
        if isinstance(error, RpcBackendError):
            error.located(device=self._lanes[passage.chain.stages[index].device].device.info.name)
        is_first = self._is_first_error(passage, error)
        self._is_last(passage)
        if is_first:
            self._end_failed(passage, error)

    def _device_failed(self, device: int, error: RpcBackendError) -> None:
        """Fail the runs that only the device itself could tell of: it had nothing to give back to the host."""
        with self._changed:
            passages = [passage for passage in self._active if passage.is_unsure_of(device)]
        for passage in passages:
            self._fail(passage, error.located(device=self._lanes[device].device.info.name))

    def _fail(self, passage: Passage, error: RpcBackendError) -> None:
        if self._is_first_error(passage, error):
            self._end_failed(passage, error)

    def _end_failed(self, passage: Passage, error: BaseException) -> None:
        """The stages to come give up their places, and nobody waits for what will not be sent."""
        try:
            self._move(passage, range(len(passage.chain.stages)))
            self._drop_tickets(passage, f"the run failed: {error}")
        finally:
            passage.run.fail(error)

    def _is_first_error(self, passage: Passage, error: BaseException) -> bool:
        """Note an error of a run; say whether the run ends with it."""
        with self._changed:
            if passage.error is not None or not passage.n_open:
                return False
            passage.error = error
            return True

    def _drop_tickets(self, passage: Passage, reason: str) -> None:
        for stage, result in zip(passage.chain.stages, passage.results, strict=True):
            if stage.receive_tickets and result is None:
                tickets = [passage.tickets[number] for number in stage.receive_tickets]
                self._lanes[stage.device].device.drop_tickets(tickets, reason)
        for given in passage.run.given.values():
            given.fail(reason)

    def _is_last(self, passage: Passage) -> bool:
        """Note that a stage is over, in whatever way; say whether it was the last."""
        with self._changed:
            passage.n_open -= 1
            if passage.n_open:
                return False
            del self._active[passage]
            self._is_taken = False
            self._changed.notify_all()
            return True


def _check_results(task: Task, results: Sequence[memoryview]) -> None:
    """Check what a device gave back: a later stage writes it as it is."""
    if [result.nbytes for result in results] != [tensor.nbytes for tensor in task.reads]:
        wanted, came = len(task.reads), len(results)
        raise DeviceError(f"{wanted} results were asked of a task, {came} or of other sizes came")
