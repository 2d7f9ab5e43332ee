"""Greetings of all ages: who works together and what a refusal says."""

import pytest

from rpc_backend.errors import NegotiationError, SettingError
from rpc_backend.protocol import records as r
from rpc_backend.protocol.commands import MAJOR, MINOR
from rpc_backend.protocol.negotiation import Greeting, negotiate, own_greeting


def greeting(major=1, minor=1, digest="d", build="b", abilities=()):
    return Greeting(major, minor, digest, build, abilities)


def test_the_lower_minor_and_the_common_abilities_are_agreed():
    agreed = negotiate(
        greeting(minor=3, abilities=("cache", "streams")), greeting(minor=2, abilities=("streams", "rdma"))
    )
    assert agreed.minor == 2
    assert agreed.abilities == {"streams"}
    assert agreed.has("streams")
    assert not agreed.has("cache")


@pytest.mark.parametrize(("client", "worker"), [((1, 9), (1, 1)), ((1, 1), (1, 9)), ((1, 4), (1, 4))])
def test_nobody_is_locked_out_by_a_minor(client, worker):
    assert negotiate(greeting(*client), greeting(*worker)).minor == min(client[1], worker[1])


@pytest.mark.parametrize(
    ("client", "worker", "advice"),
    [
        (greeting(major=1, build="x1"), greeting(major=2, build="x2"), "update the client"),
        (greeting(major=2, build="x1"), greeting(major=1, minor=9, build="x2"), "update the worker"),
        (greeting(minor=1, digest="aa", build="x1"), greeting(minor=2, digest="bb", build="x2"), "update the client"),
        (greeting(minor=2, digest="aa", build="x1"), greeting(minor=1, digest="bb", build="x2"), "update the worker"),
        (greeting(digest="aa", build="x1"), greeting(digest="bb", build="x2"), "one build"),
        (greeting(minor=0, build="x1"), greeting(build="x2"), "update the client"),
        (greeting(build="x1"), greeting(minor=0, build="x2"), "update the worker"),
    ],
)
def test_a_refusal_names_both_versions_and_who_must_update(client, worker, advice):
    with pytest.raises(NegotiationError, match=advice) as caught:
        negotiate(client, worker)
    for side in (client, worker):
        assert f"{side.major}.{side.minor} (build {side.build})" in str(caught.value)


def test_both_sides_read_the_same_greetings():
    client = Greeting.of(r.Hello(1, 2, "d", "c", ["a", "b"], 5000))
    worker = Greeting.of(r.HelloReply(1, 3, "d", "w", ["b"], b"s", 1, [], 10, 10))
    assert negotiate(client, worker) == negotiate(client, worker)
    assert (client.minor, worker.minor, negotiate(client, worker).abilities) == (2, 3, {"b"})


def test_an_older_minor_can_be_emulated_but_not_invented():
    assert own_greeting("d", "b") == Greeting(MAJOR, MINOR, "d", "b")
    assert own_greeting("d", "b", proto_minor=1).minor == 1
    for wrong in (0, MINOR + 1, -2):
        with pytest.raises(SettingError, match=str(wrong)):
            own_greeting("d", "b", proto_minor=wrong)
