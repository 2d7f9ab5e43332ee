from __future__ import annotations

from rpc_backend.client.counters import CommandCounts, Counters


def test_counts_by_command():
    counters = Counters()
    counters.sent("PING", 8)
    counters.sent("PING", 8)
    counters.received("PING", 5)
    assert counters.snapshot() == {"PING": CommandCounts(2, 16, 5)}
    assert counters.as_dict() == {"PING": {"calls": 2, "nbytes_out": 16, "nbytes_in": 5}}


def test_a_snapshot_does_not_change_any_more():
    counters = Counters()
    counters.sent("PING", 8)
    before = counters.snapshot()
    counters.sent("PING", 8)
    assert before["PING"].calls == 1
