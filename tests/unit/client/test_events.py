"""Events: order between streams of a worker, of two workers, and of this process."""

from __future__ import annotations

import gc
from concurrent.futures import Future

import numpy as np
import pytest

from rpc_backend.client.events import EventNumber, EventNumbers, RemoteEvent
from rpc_backend.errors import ComputeError, WorkerLostError
from rpc_backend.graph import Graph, build, element_type
from rpc_backend.interfaces import Event, SerialStream
from rpc_backend.settings import Settings
from rpc_backend.testing.devices import NullDevice
from rpc_backend.testing.inline_worker import InlineWorker

F32 = element_type("F32")


def placed(device):
    tensor = build.leaf(F32, [16])
    tensor.buffer = device.alloc_buffer(64)
    return tensor


def calls(connection, *names: str) -> list[int]:
    counts = connection.counters.snapshot()
    return [counts[name].calls if name in counts else 0 for name in names]


def read(stream, tensor) -> float:
    out = np.empty(16, np.float32)
    stream.get_tensor(tensor, memoryview(out))
    return float(out[0])


def later(stream, tensor, value: float) -> None:
    """Queue a write that nobody waits for."""
    data: Future[memoryview] = Future()
    data.set_result(memoryview(np.full(16, value, np.float32)))
    stream.set_tensor_when(tensor, data)


def test_a_new_event_is_passed(connection):
    event = connection.devices()[0].create_event()
    assert event.done
    event.synchronize()
    stream = connection.devices()[0].create_stream()
    stream.wait(event)
    stream.synchronize()


def test_an_event_is_passed_when_the_worker_has_finished(connection, worker):
    stream = connection.devices()[0].create_stream()
    event = stream.device.create_event()
    worker.lanes[0].held = True
    stream.record(event)
    worker.network.deliver()
    assert not event.done  # the bytes were written long ago
    worker.lanes[0].release()
    assert event.done
    event.synchronize()


def test_an_event_is_not_passed_by_what_came_after_it(connection, worker):
    stream = connection.devices()[0].create_stream()
    tensor = placed(stream.device)
    event = stream.device.create_event()
    stream.record(event)
    worker.lanes[0].held = True
    value = stream.fetch_tensor(tensor)
    assert event.done
    assert not value.done()
    worker.lanes[0].release()


def test_a_stream_waits_for_another_of_its_worker_without_the_host(connection, worker):
    one, two = (device.create_stream() for device in connection.devices())
    target = placed(two.device)
    event = one.device.create_event()
    worker.lanes[0].held = True
    one.record(event)
    two.wait(event)
    later(two, target, 1.0)
    value = two.fetch_tensor(target)
    assert not value.done()
    assert calls(connection, "EVENT_RECORD", "EVENT_WAIT", "GET_TENSORS") == [1, 1, 1]
    worker.lanes[0].release()
    assert np.frombuffer(value.result(0), np.float32)[0] == 1.0


def test_waiting_for_an_event_of_the_same_stream_sends_nothing(connection):
    stream = connection.devices()[0].create_stream()
    event = stream.device.create_event()
    stream.record(event)
    connection.devices()[0].create_stream().wait(event)
    assert calls(connection, "EVENT_RECORD", "EVENT_WAIT") == [1, 0]


def test_a_wait_is_not_sent_before_the_mark_it_is_for(connection, worker):
    one, two = (device.create_stream() for device in connection.devices())
    gate: Future[memoryview] = Future()
    source = placed(one.device)
    one.set_tensor_when(source, gate)
    event = one.device.create_event()
    one.record(event)
    two.wait(event)
    assert calls(connection, "EVENT_RECORD", "EVENT_WAIT") == [0, 0]
    gate.set_result(memoryview(bytes(64)))
    assert calls(connection, "EVENT_RECORD", "EVENT_WAIT") == [1, 1]
    two.synchronize()


@pytest.mark.parametrize("kind", ["other worker", "this process", "old worker"])
def test_what_a_worker_cannot_know_is_waited_for_here(worker, kind):
    minor = 3 if kind == "old worker" else -1
    connection = worker.connect(Settings(proto_minor=minor))
    stream = connection.devices()[0].create_stream()
    target = placed(stream.device)
    if kind == "this process":
        event, point = Event(), Future()
        event.mark(point)

        def release() -> None:
            point.set_result(None)

    else:
        other = InlineWorker([NullDevice()]) if kind == "other worker" else worker
        index = 0 if kind == "other worker" else 1
        their = other.connect().devices()[0] if kind == "other worker" else connection.devices()[1]
        event = their.create_event()
        other.lanes[index].held = True
        their.create_stream().record(event)

        def release() -> None:
            other.network.hold()  # the answer must not arrive while the lane still sends it
            other.lanes[index].release()
            other.network.release()

    stream.wait(event)
    later(stream, target, 2.0)
    value = stream.fetch_tensor(target)
    assert calls(connection, "SET_TENSOR", "GET_TENSORS", "EVENT_WAIT") == [0, 0, 0]
    release()
    assert np.frombuffer(value.result(0), np.float32)[0] == 2.0
    assert calls(connection, "SET_TENSOR", "EVENT_WAIT") == [1, 0]


def test_a_stream_of_this_process_waits_for_a_worker(connection):
    stream = connection.devices()[0].create_stream()
    event = stream.device.create_event()
    stream.record(event)
    SerialStream(NullDevice()).wait(event)
    local = Event()
    SerialStream(NullDevice()).record(local)
    assert local.done


def test_an_error_before_an_event_is_told_by_it_and_by_the_stream(connection, backends):
    stream = connection.devices()[0].create_stream()
    x = placed(stream.device)
    y = build.add(x, x)
    y.buffer = x.buffer
    backends[0].fail_on = {1}
    stream.compute(stream.device.compile(Graph.of(y)))
    event = stream.device.create_event()
    stream.record(event)
    with pytest.raises(ComputeError):
        event.synchronize()
    other = connection.devices()[0].create_stream()
    with pytest.raises(ComputeError):
        other.synchronize()
    other.synchronize()


def test_an_event_of_a_lost_worker_fails(connection, worker):
    stream = connection.devices()[0].create_stream()
    worker.network.hold()
    event = stream.device.create_event()
    stream.record(event)
    worker.network.cut(connection.dispatcher._channel)
    with pytest.raises(WorkerLostError, match="inline"):
        event.synchronize()


def count_alive(kind):
    """Count objects of a class itself: isinstance would ask a proxy of somebody else, whose object may be gone."""
    return sum(type(each) is kind for each in gc.get_objects())


def test_closed_events_leave_nothing(connection):
    one, two = (device.create_stream() for device in connection.devices())
    numbers = one.device._numbers
    gc.collect()
    before = {kind: count_alive(kind) for kind in (Event, EventNumber, Future)}
    for _ in range(1000):
        event = one.device.create_event()
        one.record(event)
        two.wait(event)
        event.close()
        event.close()
    one.synchronize()
    two.synchronize()
    del event
    assert numbers.n_taken <= 2  # of work that was sent last
    gc.collect()
    for kind, count in before.items():
        assert count_alive(kind) <= count + 8
    assert calls(connection, "EVENT_RECORD", "EVENT_WAIT") == [1000, 1000]


def test_an_event_that_nobody_closes_gives_its_number_back_too(connection):
    stream = connection.devices()[0].create_stream()
    for _ in range(100):
        stream.record(stream.device.create_event())
    stream.synchronize()
    gc.collect()
    assert stream.device._numbers.n_taken == 0


def test_numbers_are_used_again_lowest_first():
    numbers = EventNumbers()
    held = [numbers.take() for _ in range(4)]
    assert [number.value for number in held] == [1, 2, 3, 4]
    del held[1:3]
    assert numbers.n_taken == 2
    assert [numbers.take().value, numbers.take().value] == [2, 2]
    again = numbers.take()
    assert again.value == 2
    assert numbers.take().value == 3


def test_an_event_may_be_recorded_again(connection, worker):
    one, two = (device.create_stream() for device in connection.devices())
    target = placed(two.device)
    event = one.device.create_event()
    for _ in range(3):
        one.record(event)
        two.wait(event)
    assert isinstance(event, RemoteEvent)
    worker.lanes[0].held = True
    one.record(event)
    assert not event.done
    two.wait(event)
    value = two.fetch_tensor(target)
    assert not value.done()
    worker.lanes[0].release()
    assert event.done
    assert value.done()
