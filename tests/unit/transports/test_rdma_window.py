"""Credits: whatever both sides do, no message finds the ring of the other full, and none waits for ever."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpc_backend.plugin_api import ChannelError
from rpc_transport_rdma.window import CREDIT_PLACES, RETURN_AFTER, Window

PLACES = 20


def test_as_many_as_the_other_side_has_places_for():
    window = Window(2)
    window.sent()
    assert window.may_send
    window.sent()
    assert not window.may_send
    window.told(1)
    assert window.may_send


def test_counts_wrap():
    window = Window(2)
    window._n_sent = window._n_consumed_there = window._n_consumed = (1 << 32) - 1
    for _ in range(2):
        window.sent()
        window.consumed()
    assert not window.may_send
    assert window.tell() == 1
    window.told(1)
    assert window.may_send


def test_more_than_was_sent_cannot_have_been_consumed():
    window = Window(PLACES)
    window.sent()
    with pytest.raises(ChannelError):
        window.told(2)
    with pytest.raises(ChannelError):
        window.told(0xFFFF_FFFF)


class Side:
    """A side whose device places messages in the other's ring; `arrived` are those not looked at, `unread` chunks."""

    def __init__(self):
        self.window, self.arrived, self.unread = Window(PLACES), deque(), 0

    @property
    def n_taken(self):
        return len(self.arrived) + self.unread

    def chunk(self, other):
        if self.window.may_send:
            self.window.sent()
            other.arrived.append((True, self.window.tell()))
            return True
        return False

    def look(self):
        while self.arrived:
            is_chunk, count = self.arrived.popleft()
            self.window.told(count)
            self.unread += is_chunk

    def read(self):
        if self.unread:
            self.unread -= 1
            self.window.consumed()

    def credit(self, other):
        if self.window.owes_credit:
            other.arrived.append((False, self.window.tell()))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["chunk", "look", "read", "credit"])), max_size=400))
def test_a_ring_of_chunks_and_credits_never_overflows_and_both_always_get_on(steps):
    sides = Side(), Side()
    for first, what in steps:
        here, there = sides if first else sides[::-1]
        getattr(here, what)(*([there] if what in ("chunk", "credit") else []))
        assert all(side.n_taken <= PLACES + CREDIT_PLACES for side in sides)
    for _ in range(3 * PLACES):  # from here on both read: both must be able to send again and again
        for here, there in (sides, sides[::-1]):
            here.look()
            here.read()
            here.credit(there)
    assert all(side.window.may_send for side in sides)
    assert RETURN_AFTER * CREDIT_PLACES > PLACES
