from __future__ import annotations

from concurrent.futures import Future

import pytest

from rpc_backend.errors import DeadlineError, DeviceError
from rpc_backend.interfaces import Event


def test_a_new_event_is_passed():
    event = Event()
    assert event.done
    event.synchronize(0)


def test_an_event_stands_for_its_last_point():
    event, first, second = Event(), Future(), Future()
    event.mark(first)
    event.mark(second)
    first.set_result(None)
    assert not event.done
    second.set_result(None)
    assert event.done


def test_waiting_has_a_deadline():
    event = Event()
    event.mark(Future())
    with pytest.raises(DeadlineError, match="not passed within 0"):
        event.synchronize(0)


@pytest.mark.parametrize("error", [DeviceError("broke"), TimeoutError("of the work itself")])
def test_the_error_of_the_work_is_raised_to_whoever_waits(error):
    event, point = Event(), Future()
    event.mark(point)
    point.set_exception(error)
    for _ in range(2):
        with pytest.raises(type(error), match=str(error)):
            event.synchronize(0)


def test_closing_disturbs_nobody():
    event, point = Event(), Future()
    event.mark(point)
    event.close()
    event.close()
    point.set_result(None)
    assert event.done
