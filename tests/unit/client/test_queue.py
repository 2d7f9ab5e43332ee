"""Who is told of an error without an answer: whoever gets it with later work, or else all that watch."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from rpc_backend.client.work import Synchronize
from rpc_backend.errors import ComputeError
from rpc_backend.graph import Graph, build, element_type
from rpc_backend.interfaces import TaskRun
from rpc_backend.settings import Settings

F32 = element_type("F32")
N = 16


class Doubling:
    """A task of a device, `y = x + x`, and what its stream tells of failures."""

    def __init__(self, device) -> None:
        self.stream = device.create_stream()
        self.x = build.leaf(F32, [N])
        self.y = build.add(self.x, self.x)
        self.x.buffer = self.y.buffer = device.alloc_buffer(8 * N)
        self.y.offset = 4 * N
        self.task = device.prepare_task(Graph.of(self.y), writes=[self.x], reads=[self.x])
        self.told: list[BaseException] = []
        self.stream.on_failure(self.told.append)

    def submit(self, value: float):
        return self.stream.submit(self.task, TaskRun((memoryview(np.full(N, value, np.float32)),)))


@pytest.fixture(params=[1, 2, 3, 4])
def doubling(request, worker) -> Doubling:
    return Doubling(worker.connect(Settings(proto_minor=request.param)).devices()[0])


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_failed_run_fails_neither_the_one_before_it_nor_the_one_behind(
    doubling, worker, backends, failing: int, is_held: bool
) -> None:
    """Those that watch a stream take what they are told for the failure of all that is under way."""
    backends[0].fail_on = {failing + 1}
    doubling.submit(0).result(0)
    if is_held:
        worker.network.hold()
    futures = [doubling.submit(n) for n in (1, 2, 3)]
    worker.network.release()

    for n, future in enumerate(futures, 1):
        if n == failing:
            assert isinstance(future.exception(0), ComputeError)
        else:
            (x,) = future.result(0)
            assert np.frombuffer(x, np.float32).tolist() == [n] * N
    doubling.stream.synchronize()
    assert doubling.told == []


def test_an_error_that_work_under_way_will_give_is_not_told(doubling, worker, backends) -> None:
    backends[0].fail_on = {1}
    worker.network.hold()
    doubling.stream.compute(doubling.task.plan)
    later = doubling.submit(1)
    worker.network.release()

    assert isinstance(later.exception(0), ComputeError)
    assert doubling.told == []


class Gated(Synchronize):
    """Raises earlier errors, once its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: Future[None] = Future()
        self.gate = self.open


def test_an_error_that_work_that_waits_will_give_is_not_told(doubling, worker, backends) -> None:
    backends[0].fail_on = {1}
    waiting = Gated()
    worker.network.hold()
    doubling.stream.compute(doubling.task.plan)
    doubling.stream._queue.enqueue(waiting)
    worker.network.release()

    assert doubling.told == []
    assert waiting.error is None
    waiting.open.set_result(None)
    assert isinstance(waiting.error, ComputeError)


def test_an_error_that_nobody_will_get_is_told_once(doubling, worker, backends) -> None:
    backends[0].fail_on = {1}
    worker.network.hold()
    doubling.stream.compute(doubling.task.plan)
    doubling.stream.set_tensor(doubling.x, memoryview(bytes(4 * N)))
    worker.network.release()

    assert [type(error) for error in doubling.told] == [ComputeError]
    with pytest.raises(ComputeError):
        doubling.stream.synchronize()
    doubling.stream.synchronize()
    assert len(doubling.told) == 1
