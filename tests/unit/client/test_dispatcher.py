from __future__ import annotations

import pytest

from rpc_backend.errors import DeadlineError, HandleError, WorkerLostError
from rpc_backend.interfaces import Ticket
from rpc_backend.protocol.commands import BUFFER_GET_BASE, DEVICE_COUNT, PING
from rpc_backend.protocol.records import BufferRef, Count, Empty
from rpc_backend.settings import Settings


def test_a_call_returns_its_reply_and_is_counted(connection):
    assert connection.call(DEVICE_COUNT, Empty()) == Count(2)
    counts = connection.counters.snapshot()["DEVICE_COUNT"]
    assert counts.calls == 1
    assert counts.nbytes_out > 0
    assert counts.nbytes_in > 0


def test_the_workers_error_is_raised_with_its_place(connection):
    with pytest.raises(HandleError) as caught:
        connection.call(BUFFER_GET_BASE, BufferRef(7))
    assert caught.value.context.command == "BUFFER_GET_BASE"
    assert caught.value.context.remote_type.endswith("HandleError")
    assert "Traceback" in caught.value.context.traceback


def test_answers_find_their_requests(worker, connection):
    dispatcher = connection.dispatcher
    worker.network.hold()
    pings = [dispatcher.submit(PING, Empty()) for _ in range(3)]
    count = dispatcher.submit(DEVICE_COUNT, Empty())
    worker.network.release()
    assert dispatcher.wait(count).reply == Count(2)
    assert [dispatcher.wait(ping).reply for ping in pings] == [Empty()] * 3


def test_a_wait_has_a_deadline_and_the_late_answer_is_dropped(worker, connection):
    worker.network.hold()
    with pytest.raises(DeadlineError) as caught:
        connection.dispatcher.call(PING, Empty(), timeout_s=0.01)
    assert caught.value.context.worker == "inline"
    assert caught.value.context.command == "PING"
    worker.network.release()
    assert connection.call(DEVICE_COUNT, Empty()) == Count(2)


def test_a_worker_that_answers_nothing_is_lost(worker):
    connection = worker.connect(Settings(heartbeat_timeout_ms=100))
    worker.network.hold()
    with pytest.raises(WorkerLostError, match="PING included") as caught:
        connection.call(DEVICE_COUNT, Empty())
    assert caught.value.context.worker == "inline"
    assert connection.dispatcher.is_lost


def test_a_worker_that_answers_ping_may_take_its_time(worker):
    connection = worker.connect(Settings(heartbeat_timeout_ms=100, command_timeout_ms=400))
    worker.lanes[0].held = True
    with pytest.raises(DeadlineError, match=r"within 0\.4 s"):
        connection.devices()[0].create_stream().synchronize()
    assert connection.counters.snapshot()["PING"].calls >= 2
    assert not connection.dispatcher.is_lost


def test_a_lost_worker_fails_what_waits_and_what_comes(worker, connection):
    dispatcher = connection.dispatcher
    worker.network.hold()
    waiting = dispatcher.submit(PING, Empty())
    worker.network.cut(dispatcher._channel)
    for attempt in (lambda: dispatcher.wait(waiting), lambda: connection.call(PING, Empty())):
        with pytest.raises(WorkerLostError, match="cut by the test") as caught:
            attempt()
        assert caught.value.context.worker == "inline"


def test_a_worker_that_breaks_the_protocol_is_lost(worker, connection):
    worker.network.drop_next()
    connection.dispatcher.submit(PING, Empty())
    with pytest.raises(WorkerLostError, match="lost, doubled or taken apart"):
        connection.call(PING, Empty())


class Stuck(Ticket):
    """Bytes that do not leave, until the worker is lost."""

    def __init__(self, dispatcher) -> None:
        self.dispatcher = dispatcher

    @property
    def done(self) -> bool:
        return self.dispatcher.is_lost

    def wait(self, timeout_s: float) -> None:
        raise DeadlineError("not yet")


def test_bytes_that_do_not_leave_have_a_deadline(worker):
    dispatcher = worker.connect(Settings(command_timeout_ms=20)).dispatcher
    with pytest.raises(DeadlineError, match=r"did not leave for the worker within 0\.02 s"):
        dispatcher.wait_sent(Stuck(dispatcher))


def test_bytes_that_do_not_leave_to_a_hung_worker_are_given_up(worker):
    dispatcher = worker.connect(Settings(heartbeat_timeout_ms=100)).dispatcher
    worker.network.hold()
    dispatcher.wait_sent(Stuck(dispatcher))
    assert dispatcher.is_lost
