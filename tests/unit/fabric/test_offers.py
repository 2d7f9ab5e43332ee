"""Which link a connection gets, and the one line that says why there is none."""

import pytest

from rpc_backend.errors import RemoteProtocolError
from rpc_backend.fabric import offer_records, read_offers
from rpc_backend.fabric.offers import OwnOffers, take_up
from rpc_backend.interfaces import LinkOffer
from rpc_backend.testing.memory_links import MemoryPayloads


def offered(*transports):
    return OwnOffers(transports, "tcp://there:1")


def test_both_sides_come_to_one_link(caplog):
    here, there = MemoryPayloads(), MemoryPayloads()
    own = offered(MemoryPayloads("other"), here)
    theirs, answer = take_up([there], own.records())
    chosen, must_decline = own.choose([answer])
    assert theirs is not None
    assert chosen is not None
    assert not must_decline
    assert chosen.link is here.links[0]
    assert here.links[0].peer is there.links[0]
    assert there.links[0].peer is here.links[0]
    assert caplog.text == ""


def test_links_that_are_not_chosen_are_closed():
    other, here = MemoryPayloads("other"), MemoryPayloads()
    own = offered(other, here)
    _, answer = take_up([MemoryPayloads()], own.records())
    own.choose([answer])
    assert other.links[0].is_closed
    assert not here.links[0].is_closed


def test_a_transport_that_cannot_here_is_not_offered_and_the_log_says_why(caplog):
    transport = MemoryPayloads()
    transport.refusal = "the package is missing"
    assert offered(transport).records() == []
    assert caplog.messages == ["payloads to tcp://there:1 travel inside the fabric: the package is missing"]


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        ([], "the worker cannot take up memory: it was started with none, not with memory"),
        ([MemoryPayloads("rdma")], "the worker cannot take up memory: it was started with rdma, not with memory"),
    ],
)
def test_a_worker_without_it_is_named(caplog, there, reason):
    here = MemoryPayloads()
    own = offered(here)
    chosen, answer = take_up(there, own.records())
    assert chosen is None
    assert own.choose([answer]) == (None, False)
    assert reason in caplog.text
    assert here.links[0].is_closed


def test_what_is_missing_at_the_worker_is_told_on_both_sides(caplog):
    here, there = MemoryPayloads(), MemoryPayloads()
    there.refusal = "locking memory was refused"
    own = offered(here)
    _, answer = take_up([there], own.records())
    own.choose([answer])
    assert [record.message.count("locking memory was refused") for record in caplog.records] == [1, 1]


def test_an_older_worker_answers_nothing(caplog):
    here = MemoryPayloads()
    assert offered(here).choose([]) == (None, False)
    assert "it is older" in caplog.text
    assert here.links[0].is_closed


def test_a_worker_whose_link_cannot_be_reached_must_be_told(caplog):
    here, there = MemoryPayloads(), MemoryPayloads()
    own = offered(here)
    _, answer = take_up([there], own.records())
    there.links[0].close()
    assert own.choose([answer]) == (None, True)
    assert here.links[0].is_closed
    assert "there is no link" in caplog.text


def test_an_answer_for_a_link_that_was_not_offered_is_declined():
    assert offered().choose([LinkOffer("memory", b"data")]) == (None, True)


def test_a_link_that_cannot_be_connected_at_the_worker_is_closed():
    there = MemoryPayloads()
    chosen, answer = take_up([there], [LinkOffer("memory", b"nobody")])
    assert chosen is None
    assert "there is no link" in answer.refusal
    assert there.links[0].is_closed


def test_offers_survive_hello():
    offers = [LinkOffer("rdma", b"\0\xff"), LinkOffer("other", b"", "no")]
    assert read_offers(offer_records(offers)) == offers
    assert read_offers([["rdma", b"x", "", "of a newer side"]]) == [LinkOffer("rdma", b"x")]


@pytest.mark.parametrize("record", [[], ["rdma"], ["rdma", "text", ""], [1, b"", ""], ["rdma", b"", None]])
def test_malformed_offers_are_refused(record):
    with pytest.raises(RemoteProtocolError, match="payload link"):
        read_offers([record])
