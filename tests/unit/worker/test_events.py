from __future__ import annotations

import pytest

from rpc_backend.errors import ComputeError, LimitError
from rpc_backend.protocol import encode_error
from rpc_backend.worker import events
from rpc_backend.worker.events import EventTable


def test_a_wait_is_for_the_mark_asked_for_before_it():
    table, woken = EventTable(), []
    first = table.ask(7)
    awaited = table.asked(7)
    second = table.ask(7)
    assert not table.is_passed(7, awaited, lambda: woken.append("a"))
    assert not table.is_passed(7, second, lambda: woken.append("b"))
    table.mark(7, first, None)
    assert woken == ["a", "b"]
    assert table.is_passed(7, awaited, lambda: None)
    assert not table.is_passed(7, second, lambda: None)
    table.mark(7, second, None)
    assert table.is_passed(7, second, lambda: None)


def test_an_event_that_nobody_marks_holds_nobody():
    table = EventTable()
    assert table.asked(1) == 0
    assert table.is_passed(1, 0, lambda: None)
    assert table.failure(1) is None


def test_a_mark_that_comes_out_of_order_takes_nothing_back():
    table = EventTable()
    first, second = table.ask(1), table.ask(1)
    table.mark(1, second, None)
    table.mark(1, first, None)
    assert table.is_passed(1, second, lambda: None)


def test_a_mark_carries_the_error_of_its_stream():
    table, failure = EventTable(), encode_error(ComputeError("x"))
    table.mark(1, table.ask(1), failure)
    assert table.failure(1) == failure
    table.mark(1, table.ask(1), None)
    assert table.failure(1) is None


def test_a_session_has_only_so_many_events(monkeypatch):
    monkeypatch.setattr(events, "MAX_EVENTS", 2)
    table = EventTable()
    for number in (1, 2, 1):
        table.ask(number)
    with pytest.raises(LimitError, match="2 events"):
        table.ask(3)
