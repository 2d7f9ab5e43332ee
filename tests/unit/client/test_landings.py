"""Where both sides of a copy meet."""

from __future__ import annotations

import pytest

from rpc_backend.client.landings import Landings
from rpc_backend.errors import WorkerLostError

TICKET = bytes(16)


def test_both_sides_get_the_same_once():
    landings = Landings()
    one = landings.at(TICKET)
    assert landings.at(TICKET) is one
    assert len(landings) == 0
    assert landings.at(TICKET) is not one
    one.clear([1])
    one.land(None)
    assert (one.ready.result(0), one.landed.result(0)) == ([1], None)


def test_who_waits_for_a_dropped_ticket_is_told_before_and_after():
    landings = Landings()
    waiting = landings.at(TICKET)
    landings.drop([TICKET], "the run failed")
    late = landings.at(TICKET)
    for landing in (waiting, late):
        for future in (landing.ready, landing.landed):
            with pytest.raises(WorkerLostError, match="the run failed"):
                future.result(0)
        landing.clear([1])  # comes too late, and is no error
        landing.land(None)
    assert len(landings) == 0


def test_only_so_many_dropped_tickets_are_remembered(monkeypatch):
    monkeypatch.setattr("rpc_backend.client.landings._MAX_BURIED", 2)
    landings = Landings()
    tickets = [bytes([number] * 16) for number in range(3)]
    landings.drop(tickets, "gone")
    assert [landings.at(ticket).ready.done() for ticket in tickets] == [False, True, True]
