"""The stream with a thread of its own: order, errors, waiting, the end."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest

from rpc_backend.errors import ComputeError, DeadlineError, DeviceError, GraphError
from rpc_backend.graph import Graph, Tensor, build
from rpc_backend.graph.element_types import F32
from rpc_backend.interfaces import Event, QueuedStream, RunnablePlan, SerialStream, Task, TaskRun
from rpc_backend.testing.devices import NullDevice


class _Increment(RunnablePlan):
    """Adds one to every element, once its gate is open."""

    def __init__(self, tensor: Tensor) -> None:
        self.graph = Graph([])
        self.tensor = tensor
        self.gate = threading.Event()
        self.gate.set()
        self.thread = ""
        self.error: Exception | None = None

    def run(self) -> None:
        self.thread = threading.current_thread().name
        assert self.gate.wait(20)
        if self.error is not None:
            raise self.error
        self.tensor.buffer.bytes.view("<f4")[:4] += 1


@pytest.fixture
def stream() -> Iterator[QueuedStream]:
    stream = QueuedStream(SerialStream(NullDevice()))
    yield stream
    stream.close()


@pytest.fixture
def tensor(stream: QueuedStream) -> Tensor:
    return _tensor(stream)


@pytest.fixture
def plan(tensor: Tensor) -> Iterator[_Increment]:
    plan = _Increment(tensor)
    yield plan
    plan.gate.set()


def _tensor(stream: QueuedStream) -> Tensor:
    tensor = build.leaf(F32, (4,))
    tensor.buffer = stream.device.alloc_buffer(tensor.nbytes)
    return tensor


def _bytes(*values: float) -> memoryview:
    return memoryview(np.array(values, "<f4").tobytes())


def _get(stream: QueuedStream, tensor: Tensor) -> list[float]:
    out = np.zeros(4, "<f4")
    stream.get_tensor(tensor, out.data)
    return out.tolist()


def test_work_is_queued_and_done_in_order(stream, tensor, plan):
    plan.gate.clear()
    data = np.array([1, 2, 3, 4], "<f4")
    stream.set_tensor(tensor, data.data)
    data[:] = 0  # it may be reused
    stream.compute(plan)
    stream.compute(plan)
    stream.set_tensor(tensor, _bytes(9), 12)
    later = np.zeros(4, "<f4")
    stream.get_tensor_async(tensor, later.data)
    fetched = stream.fetch_tensor(tensor)
    stream.compute(plan)
    assert not fetched.done()
    plan.gate.set()
    assert np.frombuffer(fetched.result(20), "<f4").tolist() == [3, 4, 5, 9]
    assert later.tolist() == [3, 4, 5, 9]
    assert _get(stream, tensor) == [4, 5, 6, 10]
    assert plan.thread == "stream-null"


def test_synchronize_waits_for_all(stream, tensor, plan):
    plan.gate.clear()
    stream.compute(plan)
    threading.Timer(0.05, plan.gate.set).start()
    started_s = time.monotonic()
    stream.synchronize()
    assert time.monotonic() - started_s >= 0.04
    assert tensor.buffer.bytes.view("<f4").tolist() == [1, 1, 1, 1]


def test_copies_say_whether_they_can(stream, tensor):
    other, unlike = _tensor(stream), build.leaf(F32, (2, 2))
    unlike.buffer = tensor.buffer
    stream.set_tensor(tensor, _bytes(1, 2, 3, 4))
    assert stream.copy_tensor(tensor, other)
    assert not stream.copy_tensor(tensor, unlike)
    assert _get(stream, other) == [1, 2, 3, 4]


def test_a_task_is_written_run_and_read(stream, tensor, plan):
    task = Task(plan, writes=(tensor,), reads=(tensor,))
    futures = [stream.submit(task, TaskRun((_bytes(number, 0, 0, 0),))) for number in range(3)]
    results = [np.frombuffer(future.result(20)[0], "<f4").tolist() for future in futures]
    assert results == [[1, 1, 1, 1], [2, 1, 1, 1], [3, 1, 1, 1]]
    assert not futures[0].cancel()


def test_a_task_on_the_callers_thread_only_if_nothing_is_queued(stream, tensor, plan):
    task = Task(plan, reads=(tensor,))
    here = threading.current_thread().name
    assert stream.submit_here(task, TaskRun()).done()
    assert plan.thread == here
    plan.gate.clear()
    queued = stream.submit(task, TaskRun())
    behind = stream.submit_here(task, TaskRun())
    assert not behind.done()
    plan.gate.set()
    assert np.frombuffer(behind.result(20)[0], "<f4")[0] == 3
    assert plan.thread == "stream-null"
    assert queued.done()
    stream.synchronize()
    stream.submit_here(task, TaskRun())
    assert plan.thread == here


def test_work_of_others_waits_for_the_task_on_the_callers_thread(stream, tensor, plan):
    plan.gate.clear()
    caller = threading.Thread(target=lambda: stream.submit_here(Task(plan), TaskRun()))
    caller.start()
    while not plan.thread:
        time.sleep(0.001)
    fetched = stream.fetch_tensor(tensor)
    time.sleep(0.02)
    assert not fetched.done()
    plan.gate.set()
    assert np.frombuffer(fetched.result(20), "<f4")[0] == 1
    caller.join(20)


@pytest.mark.parametrize("ask", ["get", "synchronize", "copy", "submit", "fetch"])
def test_an_error_comes_out_once_and_what_follows_it_is_left_out(stream, tensor, plan, ask):
    plan.error = ComputeError("broken")
    stream.compute(plan)
    stream.set_tensor(tensor, _bytes(5, 5, 5, 5))
    asked = {
        "get": lambda: _get(stream, tensor),
        "synchronize": stream.synchronize,
        "copy": lambda: stream.copy_tensor(tensor, tensor),
        "submit": lambda: stream.submit(Task(plan), TaskRun()).result(20),
        "fetch": lambda: stream.fetch_tensor(tensor).result(20),
    }[ask]
    with pytest.raises(ComputeError, match=r"broken \(device null\)"):
        asked()
    plan.error = None
    assert _get(stream, tensor) == [0, 0, 0, 0]
    stream.set_tensor(tensor, _bytes(6, 6, 6, 6))
    assert _get(stream, tensor) == [6, 6, 6, 6]


def test_the_error_of_a_task_is_its_own(stream, tensor, plan):
    plan.error = ComputeError("broken")
    failed = stream.submit(Task(plan), TaskRun())
    with pytest.raises(ComputeError, match="broken"):
        failed.result(20)
    plan.error = None
    assert _get(stream, tensor) == [0, 0, 0, 0]


def test_a_foreign_error_comes_out_as_it_is(stream, tensor, plan):
    plan.error = ZeroDivisionError("no")
    stream.compute(plan)
    with pytest.raises(ZeroDivisionError):
        stream.synchronize()
    with pytest.raises(ZeroDivisionError):
        stream.submit(Task(plan), TaskRun()).result(20)


def test_a_range_outside_is_refused(stream, tensor):
    stream.set_tensor(tensor, _bytes(1), 16)
    with pytest.raises(GraphError, match="are outside <leaf"):
        stream.synchronize()
    with pytest.raises(GraphError, match="are outside <leaf"):
        stream.get_tensor(tensor, memoryview(bytearray(4)), -4)


def test_a_write_waits_for_its_bytes_and_what_follows_waits_too(stream, tensor, plan):
    data: Future[memoryview] = Future()
    stream.set_tensor_when(tensor, data)
    stream.compute(plan)
    fetched = stream.fetch_tensor(tensor)
    time.sleep(0.02)
    assert not fetched.done()
    data.set_result(_bytes(1, 2, 3, 4))
    assert np.frombuffer(fetched.result(20), "<f4").tolist() == [2, 3, 4, 5]


def test_bytes_that_do_not_come_are_an_error(stream, tensor):
    data: Future[memoryview] = Future()
    stream.set_tensor_when(tensor, data)
    data.set_exception(DeviceError("the source is gone"))
    with pytest.raises(DeviceError, match="the source is gone"):
        stream.synchronize()


def test_a_queued_copy_keeps_its_place_on_both_sides(stream, tensor, plan):
    other = QueuedStream(SerialStream(NullDevice("other")))
    target = _tensor(other)
    plan.gate.clear()
    stream.compute(plan)
    assert other.copy_tensor_async(stream, tensor, other, target)
    stream.compute(plan)  # after the copy was taken
    increment = _Increment(target)
    other.compute(increment)
    plan.gate.set()
    assert _get(other, target) == [2, 2, 2, 2]
    assert _get(stream, tensor) == [2, 2, 2, 2]
    assert not other.copy_tensor_async(SerialStream(NullDevice()), tensor, other, target)
    other.close()


def test_events_order_streams(stream, tensor, plan):
    other = QueuedStream(SerialStream(NullDevice("other")))
    plan.gate.clear()
    event = Event()
    stream.compute(plan)
    stream.record(event)
    other.wait(event)
    second = _Increment(tensor)
    other.compute(second)
    assert not event.done
    time.sleep(0.02)
    assert second.thread == ""
    plan.gate.set()
    other.synchronize()
    assert event.done
    assert tensor.buffer.bytes.view("<f4")[0] == 2
    other.close()


def test_an_error_before_an_event_is_one_of_who_waits_for_it_too(stream, tensor, plan):
    other = QueuedStream(SerialStream(NullDevice("other")))
    plan.error = ComputeError("broken")
    event = Event()
    stream.compute(plan)
    stream.record(event)
    other.wait(event)
    for waiting in (lambda: event.synchronize(20), other.synchronize, stream.synchronize):
        with pytest.raises(ComputeError, match="broken"):
            waiting()
    other.close()


def test_waiting_has_a_deadline(plan, tensor):
    stream = QueuedStream(SerialStream(NullDevice()), timeout_s=0.05)
    plan.gate.clear()
    stream.compute(plan)
    late = r"queued work did not finish within 0.05 s \(device null\)"
    for waiting in (stream.synchronize, lambda: _get(stream, tensor), stream.close):
        with pytest.raises(DeadlineError, match=late):
            waiting()
    plan.gate.set()
    stream.close()


def test_closing_finishes_the_work(plan, tensor):
    stream = QueuedStream(SerialStream(NullDevice()))
    for _ in range(20):
        stream.compute(plan)
    stream.close()
    stream.close()
    assert tensor.buffer.bytes.view("<f4")[0] == 20
    for act in (stream.synchronize, lambda: stream.compute(plan), lambda: stream.submit_here(Task(plan), TaskRun())):
        with pytest.raises(DeviceError, match=r"the stream is closed \(device null\)"):
            act()


def test_a_stream_that_nobody_holds_ends_its_thread():
    stream = QueuedStream(SerialStream(NullDevice("forgotten")))
    stream.synchronize()
    gone = weakref.ref(stream)
    [thread] = [thread for thread in threading.enumerate() if thread.name == "stream-forgotten"]
    del stream
    for _ in range(100):
        gc.collect()
        if gone() is None:
            break
        time.sleep(0.01)
    thread.join(20)
    assert not thread.is_alive()


def test_no_thread_without_work():
    QueuedStream(SerialStream(NullDevice("idle"))).close()
    assert not [thread for thread in threading.enumerate() if thread.name == "stream-idle"]
