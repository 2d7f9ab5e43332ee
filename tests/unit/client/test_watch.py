from __future__ import annotations

from rpc_backend.client import CommandCounts
from rpc_backend.client.watch import stats_line


def test_what_passed_since_the_last_line_most_frequent_first():
    before = {"SUBMIT": CommandCounts(10, 1000, 200), "PING": CommandCounts(1, 10, 10)}
    counts = {
        "SUBMIT": CommandCounts(14, 1400, 240),
        "PING": CommandCounts(1, 10, 10),
        "GET_TENSORS": CommandCounts(1, 70, 4096),
        "ALLOC_BUFFER": CommandCounts(1, 60, 20),
    }
    assert stats_line("tcp://host:1", 5.02, counts, before) == (
        "zmq-rpc stats tcp://host:1 5.0 s: SUBMIT 4 calls 400 B out 40 B in; ALLOC_BUFFER 1 calls 60 B out 20 B in; "
        "GET_TENSORS 1 calls 70 B out 4096 B in; all 6 calls 530 B out 4156 B in"
    )


def test_an_answer_to_what_was_sent_before_counts():
    before = {"SUBMIT": CommandCounts(1, 100, 0)}
    assert "SUBMIT 0 calls 0 B out 50 B in" in stats_line("w", 1.0, {"SUBMIT": CommandCounts(1, 100, 50)}, before)


def test_nothing_passed():
    counts = {"SUBMIT": CommandCounts(1, 2, 3)}
    assert stats_line("w", 1.0, counts, counts) == ""
