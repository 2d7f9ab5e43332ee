from __future__ import annotations

import pytest

from rpc_backend.client.connection import greet
from rpc_backend.client.dispatcher import Dispatcher
from rpc_backend.errors import ConnectError, NegotiationError, RemoteProtocolError, WorkerLostError
from rpc_backend.graph import op_table_digest
from rpc_backend.protocol import MINOR, Limits, WorkerConversation, own_greeting
from rpc_backend.protocol.commands import PING
from rpc_backend.protocol.records import Empty, HelloReply
from rpc_backend.settings import Settings
from rpc_backend.testing.memory_channel import MemoryNetwork

GREETING = own_greeting(op_table_digest(), "test")


def reply(**changes) -> HelloReply:
    fields = {
        "major": 1, "minor": 1, "op_digest": op_table_digest(), "build": "fake", "abilities": [],
        "session": bytes(16), "epoch": 1, "devices": [["d", "", "cpu"]], "max_payload_nbytes": 1 << 20,
        "max_queued_nbytes": 1 << 20,
    }  # fmt: skip
    return HelloReply(**{**fields, **changes})


def greet_a_worker_that_says(answer: HelloReply):
    network = MemoryNetwork(immediate=True)
    conversation = WorkerConversation()

    def on_message(peer, frames):
        event = conversation.receive(frames)
        listener.send(peer, conversation.reply(event.sequence, answer))

    listener = network.listen(on_message=on_message, on_peer_lost=lambda peer: None)
    dispatcher = Dispatcher("fake", Settings(), Limits())
    dispatcher.attach(network.connect(on_message=dispatcher.on_message, on_lost=dispatcher.on_lost))
    return greet(dispatcher, GREETING, Settings(connect_timeout_ms=50))


def test_a_newer_minor_is_no_obstacle():
    assert greet_a_worker_that_says(reply(minor=7)).agreement.minor == MINOR


@pytest.mark.parametrize("changes", [{"major": 2}, {"op_digest": "other"}])
def test_no_common_ground_names_worker_and_versions(changes):
    with pytest.raises(NegotiationError, match=rf"client speaks version 1\.{MINOR} .* the worker \d\.\d") as caught:
        greet_a_worker_that_says(reply(**changes))
    assert caught.value.context.worker == "fake"


@pytest.mark.parametrize("changes", [{"devices": []}, {"max_payload_nbytes": 0}, {"max_queued_nbytes": -1}])
def test_an_answer_that_makes_no_sense_is_refused(changes):
    with pytest.raises(RemoteProtocolError, match="HELLO was answered with"):
        greet_a_worker_that_says(reply(**changes))


def test_a_device_of_an_unknown_kind_is_refused():
    with pytest.raises(RemoteProtocolError, match="abacus"):
        greet_a_worker_that_says(reply(devices=[["d", "", "abacus"]])).devices()


@pytest.mark.parametrize("heartbeat_ms", [100, 5000])
def test_something_that_does_not_greet_back_is_no_worker(heartbeat_ms):
    settings = Settings(connect_timeout_ms=150, heartbeat_timeout_ms=heartbeat_ms)
    network = MemoryNetwork(immediate=True)
    network.listen(on_message=lambda peer, frames: None, on_peer_lost=lambda peer: None)
    dispatcher = Dispatcher("fake", settings, Limits())
    dispatcher.attach(network.connect(on_message=dispatcher.on_message, on_lost=dispatcher.on_lost))
    with pytest.raises(ConnectError, match="does not answer HELLO"):
        greet(dispatcher, GREETING, settings)


def test_something_that_hangs_up_is_no_worker():
    network = MemoryNetwork(immediate=True)

    def refuse(peer, frames):
        raise ValueError("what is this?")

    network.listen(on_message=refuse, on_peer_lost=lambda peer: None)
    dispatcher = Dispatcher("fake", Settings(), Limits())
    dispatcher.attach(network.connect(on_message=dispatcher.on_message, on_lost=dispatcher.on_lost))
    with pytest.raises(ConnectError, match="what is this"):
        greet(dispatcher, GREETING, Settings(connect_timeout_ms=20))


def test_devices_are_always_the_same_objects(connection):
    assert connection.devices() == connection.devices()
    assert [device.info.name for device in connection.devices()] == ["zero@inline", "one@inline"]
    assert connection.devices()[0].info.kind == "cpu"


def test_close_frees_the_session_and_fails_later_calls(worker, backends, connection):
    connection.devices()[0].alloc_buffer(1000)
    connection.close()
    connection.close()
    assert backends[0].memory().free_nbytes == 1 << 20
    with pytest.raises(WorkerLostError, match="closed here"):
        connection.call(PING, Empty())


def test_close_of_a_lost_worker_does_not_raise(worker, connection):
    with connection:
        worker.network.cut(connection.dispatcher._channel)
