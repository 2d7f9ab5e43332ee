from __future__ import annotations

import pytest

from rpc_backend.errors import ComputeError, DeadlineError, LimitError, SessionError
from rpc_backend.protocol import encode_error
from rpc_backend.protocol.negotiation import Agreement
from rpc_backend.worker.mailbox import Mailbox
from rpc_backend.worker.sessions import Session, SessionTable

LIMIT = 10_000
FAILURE = encode_error(ComputeError("stage 1 failed"))


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mailbox(clock) -> Mailbox:
    return Mailbox(LIMIT, 5.0, clock=clock)


@pytest.fixture
def sender() -> Session:
    return SessionTable(1, 8).open(b"peer", Agreement(4, frozenset()))


def ticket(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_what_came_is_taken_in_the_order_of_the_tickets_and_once(mailbox, sender):
    for number in (1, 2):
        mailbox.put(ticket(number), memoryview(b"%d" % number), sender)
    assert mailbox.wait_s([ticket(2), ticket(1)], lambda: None) == 0
    assert [bytes(data) for data in mailbox.take([ticket(2), ticket(1)])] == [b"2", b"1"]
    assert (len(mailbox), sender.queued_nbytes) == (0, 0)
    with pytest.raises(DeadlineError, match="input 0 of the task"):
        mailbox.take([ticket(1)])


def test_who_waits_is_woken_when_the_missing_one_comes(mailbox, clock, sender):
    woken: list[int] = []
    mailbox.put(ticket(1), memoryview(b"1"), sender)
    assert mailbox.wait_s([ticket(1), ticket(2)], lambda: woken.append(1)) == 5.0
    clock.now_s += 2
    assert mailbox.wait_s([ticket(1), ticket(2)], lambda: woken.append(2)) == 3.0
    mailbox.put(ticket(3), memoryview(b"3"), sender)
    assert woken == []
    mailbox.put(ticket(2), memoryview(b"2"), sender)
    assert woken == [1]
    assert mailbox.wait_s([ticket(1), ticket(2)], lambda: None) == 0


def test_the_time_to_wait_ends(mailbox, clock):
    assert mailbox.wait_s([ticket(1)], lambda: None) == 5.0
    clock.now_s += 5.5
    assert mailbox.wait_s([ticket(1)], lambda: None) == 0
    with pytest.raises(DeadlineError, match="did not come within 5 s"):
        mailbox.take([ticket(1)])


def test_one_failure_ends_the_wait_for_all(mailbox, sender):
    mailbox.fail(ticket(2), FAILURE, sender)
    assert mailbox.wait_s([ticket(1), ticket(2)], lambda: None) == 0
    with pytest.raises(ComputeError, match="stage 1 failed"):
        mailbox.take([ticket(2), ticket(1)])
    assert sender.queued_nbytes == 0


def test_what_comes_too_late_is_dropped(mailbox, sender):
    mailbox.bury([ticket(1)])
    for _ in range(2):
        mailbox.put(ticket(1), memoryview(b"late"), sender)
    assert (len(mailbox), sender.queued_nbytes) == (0, 0)


def test_a_ticket_serves_once(mailbox, sender):
    mailbox.put(ticket(1), memoryview(b"first"), sender)
    with pytest.raises(SessionError, match="used once"):
        mailbox.put(ticket(1), memoryview(b"second"), sender)
    mailbox.fail(ticket(1), FAILURE, sender)
    assert [bytes(data) for data in mailbox.take([ticket(1)])] == [b"first"]


def test_a_dropped_ticket_stays_dropped(mailbox, sender):
    mailbox.fail(ticket(1), FAILURE, sender)
    mailbox.put(ticket(1), memoryview(b"late"), sender)
    with pytest.raises(ComputeError):
        mailbox.take([ticket(1)])


def test_a_sender_may_have_only_so_much_waiting_and_whoever_waits_is_told(mailbox, sender):
    woken: list[int] = []
    mailbox.put(ticket(1), memoryview(bytes(7000)), sender)
    assert mailbox.wait_s([ticket(2)], lambda: woken.append(2)) > 0
    with pytest.raises(LimitError, match="bytes waiting"):
        mailbox.put(ticket(2), memoryview(bytes(7000)), sender)
    assert woken == [2]
    with pytest.raises(LimitError, match="bytes waiting"):
        mailbox.take([ticket(2)])
    mailbox.take([ticket(1)])
    mailbox.put(ticket(3), memoryview(bytes(7000)), sender)


def test_failures_without_end_are_bounded_too(mailbox, sender):
    n_refused = 0
    for number in range(100):
        try:
            mailbox.fail(ticket(number), FAILURE, sender)
        except LimitError:
            n_refused += 1
    assert 0 < len(mailbox) == 100 - n_refused < 20


def test_what_a_session_sent_goes_with_it(mailbox, sender):
    other = SessionTable(1, 8).open(b"other", Agreement(4, frozenset()))
    mailbox.put(ticket(1), memoryview(b"1"), sender)
    mailbox.put(ticket(2), memoryview(b"2"), other)
    mailbox.drop_sender(sender)
    assert (len(mailbox), sender.queued_nbytes) == (1, 0)
    assert [bytes(data) for data in mailbox.take([ticket(2)])] == [b"2"]


def test_the_memory_of_dead_tickets_is_bounded(mailbox, sender):
    for number in range(5000):
        mailbox.bury([ticket(number)])
    mailbox.put(ticket(4999), memoryview(b"late"), sender)
    assert len(mailbox) == 0
    assert len(mailbox._buried) <= 1024
