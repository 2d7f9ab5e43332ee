"""Channels within the worker's process."""

from __future__ import annotations

import pytest

from rpc_backend.errors import RemoteProtocolError, WorkerLostError
from rpc_backend.worker.local_channel import LocalListener


class Service:
    """Takes messages; refuses those that begin with an exclamation mark."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, bytes]] = []
        self.gone: list[bytes] = []
        self.listener = LocalListener(self.take, self.gone.append)

    def take(self, peer: bytes, frames: list[memoryview]) -> None:
        if bytes(frames[0]).startswith(b"!"):
            raise RemoteProtocolError("refused")
        self.taken.append((peer, b"".join(frames)))


@pytest.fixture
def service() -> Service:
    return Service()


class Client:
    def __init__(self, service: Service) -> None:
        self.got: list[bytes] = []
        self.lost: list[Exception] = []
        self.channel = service.listener.connect(lambda frames: self.got.append(b"".join(frames)), self.lost.append)


def test_messages_go_both_ways_at_once(service):
    one, two = Client(service), Client(service)
    assert one.channel.send([b"a", memoryview(b"b")]).done
    two.channel.send([b"c"])
    (first, text), (second, _) = service.taken
    assert text == b"ab"
    assert first != second
    service.listener.send(first, [b"x", b"y"]).wait(0)
    assert (one.got, two.got) == ([b"xy"], [])
    assert one.channel.queued_nbytes == 0


def test_a_client_that_goes_is_told_to_the_service_once(service):
    client = Client(service)
    client.channel.send([b"a"])
    client.channel.close()
    client.channel.abort()
    assert len(service.gone) == 1
    assert not service.listener.has(service.gone[0])
    assert not client.channel.is_open
    assert client.lost == []
    with pytest.raises(WorkerLostError):
        client.channel.send([b"a"])
    service.listener.send(service.gone[0], [b"late"])
    assert client.got == []


def test_what_the_service_cannot_take_ends_the_channel(service):
    client = Client(service)
    client.channel.send([b"!"])
    assert [str(error) for error in client.lost] == ["refused"]
    assert len(service.gone) == 1


def test_the_service_may_close_a_peer(service):
    client = Client(service)
    client.channel.send([b"a"])
    service.listener.close_peer(service.taken[0][0])
    assert isinstance(client.lost[0], WorkerLostError)
    service.listener.close_peer(b"nobody")


def test_a_listener_that_ends_lets_nobody_in(service):
    client = Client(service)
    service.listener.close()
    service.listener.abort()
    assert len(client.lost) == 1
    with pytest.raises(WorkerLostError, match="closing"):
        Client(service)
