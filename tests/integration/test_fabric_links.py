"""Payload links of real connections: broken, abused and left behind."""

import gc
import os
import threading
from dataclasses import replace

import pytest

from rpc_backend.errors import ChannelError, RemoteProtocolError
from rpc_backend.fabric import ClientChannel, payload_links
from rpc_backend.fabric.envelope import Envelope, Say
from rpc_backend.protocol import WorkerConversation
from rpc_backend.registry import load_registry
from rpc_backend.testing.transport_arena import MIB, OPTIONS, Client, Server, Way, wait_until

SOFT = "rdma:provider=soft"
WAY = Way("rdma", "tcp://127.0.0.1:0", SOFT)
LOST_WITHIN_S = 20


def payloads(text=SOFT):
    return load_registry().payload_transports(text)


@pytest.fixture
def server():
    with Server(WAY) as made:
        yield made
        with Client(made.endpoint, SOFT) as witness:
            assert witness.ask(b"alive?", bytes(MIB)) == [b"alive?", bytes(MIB)]


def test_a_device_that_falls_silent_ends_the_connection_on_both_sides():
    """The process lives and its heartbeats come, so nobody but the deadline of the payload can tell."""
    quick, vanishing = replace(OPTIONS, heartbeat_timeout_ms=1000), payloads(f"{SOFT},vanish_after=6")
    with Server(WAY, options=quick) as server, Client(server.endpoint, payloads=vanishing, options=quick) as client:
        client.send(b"back", bytes(16 * MIB))
        server.lost.wait(timeout_s=LOST_WITHIN_S)
        client.lost.wait(timeout_s=LOST_WITHIN_S)
        assert not client.came.items


def test_a_sender_whose_peer_fell_silent_learns_which_link_broke_and_how(server, caplog):
    vanishing = payloads(f"{SOFT},vanish_after=6")
    with Server(WAY, payloads=vanishing) as silent, Client(silent.endpoint, SOFT) as client:
        ticket = client.send(b"hello", bytes(32 * MIB))
        (error,) = client.lost.wait(timeout_s=LOST_WITHIN_S)
        assert isinstance(error, ChannelError)
        assert "rdma: the link broke: RETRY_EXC_ERR" in str(error)
        ticket.wait(LOST_WITHIN_S)


@pytest.mark.parametrize(
    "frames",
    [
        [Envelope(Say.PAYLOADS, (OPTIONS.max_frame_nbytes + 1,)).encode(), b"head"],
        [Envelope(Say.PAYLOADS, (5000,) * OPTIONS.max_frames).encode(), b"head"],
        [Envelope(Say.READY).encode()],
        [Envelope(Say.DECLINED).encode()],
        [b"\xc1\x07\x00\x00"],
        [b"\xc1"],
    ],
    ids=["too large", "too many", "ready twice", "declined after ready", "unknown", "cut short"],
)
def test_what_no_side_may_say_ends_that_connection_only(server, frames):
    with Client(server.endpoint, SOFT) as client, Client(server.endpoint, SOFT) as other:
        assert client.ask(b"first", bytes(MIB)) == [b"first", bytes(MIB)]
        client.send(*frames)
        client.lost.wait(timeout_s=LOST_WITHIN_S)
        assert other.ask(b"second", bytes(MIB)) == [b"second", bytes(MIB)]


def test_an_envelope_without_a_link_is_no_message_of_the_protocol(server):
    with Client(server.endpoint) as client:
        strange = Envelope(Say.PAYLOADS, (5000,)).encode()
        assert client.ask(strange, b"head") == [strange, b"head"]  # the fabric leaves it to its receiver
    with pytest.raises(RemoteProtocolError):
        WorkerConversation().receive([strange, b"head"])


def test_links_are_limited_and_who_comes_later_is_served_without(server, monkeypatch):
    monkeypatch.setattr(payload_links, "MAX_LINKS", 1)
    with Client(server.endpoint, SOFT) as first, Client(server.endpoint, SOFT) as second:
        assert [client.channel.carrier.name for client in (first, second)] == ["rdma-soft", ""]
        assert second.ask(b"inside", bytes(MIB)) == [b"inside", bytes(MIB)]


def test_connections_leave_nothing_behind(server):
    def settled():
        return not server.listener._links._by_fd  # pyright: ignore

    def count():
        wait_until(settled, "the listener still has links", LOST_WITHIN_S)
        gc.collect()  # the software model's objects refer to each other
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    with Client(server.endpoint, payloads=server.payloads) as client:
        client.ask(b"warm", bytes(MIB))
    before = count()
    for turn in range(8):
        with Client(server.endpoint, payloads=server.payloads) as client:
            if turn % 2:
                client.ask(b"turn", bytes(MIB))
            else:
                client.send(b"turn", bytes(8 * MIB))
    wait_until(lambda: count() <= before, f"descriptors and threads did not come back to {before}", LOST_WITHIN_S)


def test_a_client_that_never_says_whether_it_is_ready_is_served_inside(server, monkeypatch):
    monkeypatch.setattr(ClientChannel, "take_link", lambda self, answers: None)
    with Client(server.endpoint, SOFT) as client:
        assert client.ask(b"inside", bytes(MIB)) == [b"inside", bytes(MIB)]
        assert client.channel.carrier.name == ""
    monkeypatch.undo()
