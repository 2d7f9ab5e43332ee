"""What strangers can do to a listener: be refused. It goes on serving."""

import logging
import os
import socket
import struct
import threading
import time

import pytest
import zmq

from rpc_backend.fabric import FabricOptions, connect, listen
from rpc_backend.protocol import parse_endpoint
from rpc_backend.registry import load_registry

WAIT_S = 20
MAX_FRAME_NBYTES = 1 << 20


class Server:
    """A listener that writes down what reaches it and echoes it."""

    def __init__(self):
        self.got, self.lost = [], []
        self.changed = threading.Condition()
        self.transport_for = load_registry().transport_for
        self.listener = listen(
            [parse_endpoint("127.0.0.1:0", listen=True)], self.transport_for,
            on_message=self.on_message, on_peer_lost=self.on_peer_lost,
            options=FabricOptions(max_frame_nbytes=MAX_FRAME_NBYTES, max_frames=4, connect_timeout_ms=500),
        )  # fmt: skip
        self.port = self.listener.bound_endpoints[0].port

    def on_message(self, peer, frames):
        with self.changed:
            self.got.append([bytes(frame) for frame in frames])
            self.changed.notify_all()
        self.listener.send(peer, frames)

    def on_peer_lost(self, peer):
        with self.changed:
            self.lost.append(peer)
            self.changed.notify_all()

    def wait_for(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S)

    def check_alive(self):
        arrived = threading.Event()
        endpoint = self.listener.bound_endpoints[0]
        channel = connect(
            endpoint, self.transport_for("tcp"), on_message=lambda frames: arrived.set(), on_lost=lambda error: None
        )
        channel.send([b"alive?"])
        assert arrived.wait(WAIT_S)
        channel.close()


@pytest.fixture
def server():
    made = Server()
    yield made
    made.check_alive()
    made.listener.close()


@pytest.fixture
def dealer(server):
    context = zmq.Context()
    sock = context.socket(zmq.DEALER)
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.RECONNECT_IVL, -1)
    sock.connect(f"tcp://127.0.0.1:{server.port}")
    yield sock
    context.destroy(0)


def closed_by_the_server(connection):
    """Whether the other side ends the connection, whatever it says before."""
    connection.settimeout(WAIT_S)
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n",
        b"\x00" * 4096,
        b"\xff" * 4096,
        b"\x01\x00\x05\x00hello\x02\x00x",
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f" + b"\x03" + b"\x00" * 200,
        b"\xff" + struct.pack(">Q", 1 << 40) + b"\x7f" + b"x" * 64,
        b"\x80\x04\x95" + bytes(range(256)),
    ],
    ids=["http", "zeros", "ones", "old zmtp", "truncated greeting", "1 TiB", "pickle"],
)
def test_bytes_of_another_language_never_become_a_message(server, data):
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection:
        connection.sendall(data)
        connection.settimeout(0.3)
        try:
            while connection.recv(65536):
                pass
        except OSError:
            pass
    assert server.got == []
    assert server.lost == []


def test_random_bytes(server):
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection:
            try:
                connection.sendall(os.urandom(500))
            except OSError:
                continue
    time.sleep(0.2)
    assert server.got == []


def test_a_connection_that_never_greets_is_ended(server):
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection:
        assert closed_by_the_server(connection)


def test_messages_of_a_peer_that_did_not_greet_are_dropped(server, caplog):
    """ZMTP 1.0 has no greeting: anything that looks like a frame would be taken for a message of such a peer."""
    with caplog.at_level(logging.WARNING), socket.create_connection(("127.0.0.1", server.port), WAIT_S) as connection:
        connection.sendall(b"\x01\x00" + b"\x06\x00hello" * 3)
        time.sleep(0.3)
    assert server.got == []
    assert caplog.text.count("without the greeting") == 1, "a stranger cannot fill the log"


def test_a_frame_above_the_limit_ends_the_connection(server, dealer):
    dealer.send_multipart([b"h", bytes(MAX_FRAME_NBYTES)])
    server.wait_for(lambda: len(server.got) == 1)
    dealer.send_multipart([b"h", bytes(MAX_FRAME_NBYTES + 1)])
    server.wait_for(lambda: len(server.lost) == 1)
    assert len(server.got) == 1


def test_too_many_frames_end_the_connection(server, dealer):
    dealer.send_multipart([b"x"] * 4)
    server.wait_for(lambda: len(server.got) == 1)
    dealer.send_multipart([b"x"] * 5000)
    server.wait_for(lambda: len(server.lost) == 1)
    # The connection is gone, and this socket does not make another; it hears of that a moment later.
    server.wait_for(lambda: not dealer.poll(0, zmq.POLLOUT))
    with pytest.raises(zmq.Again):
        dealer.send_multipart([b"after"], zmq.NOBLOCK)


@pytest.mark.parametrize("kind", [zmq.REQ, zmq.ROUTER])
def test_a_socket_of_another_kind_is_refused(server, kind):
    with zmq.Context() as context, context.socket(kind) as sock:
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.ROUTING_ID, b"them")
        if kind == zmq.ROUTER:
            sock.setsockopt(zmq.CONNECT_ROUTING_ID, b"worker")
        sock.connect(f"tcp://127.0.0.1:{server.port}")
        time.sleep(0.2)
        sock.send_multipart([b"worker", b"x"] if kind == zmq.ROUTER else [b"x"])
        time.sleep(0.3)
    assert server.got == []
    assert server.lost == []


def test_empty_messages_and_frames_arrive_as_they_are(server, dealer):
    dealer.send_multipart([b""])
    dealer.send_multipart([b"", b"", b"a"])
    server.wait_for(lambda: len(server.got) == 2)
    assert server.got == [[b""], [b"", b"", b"a"]]


def test_a_chosen_identity_cannot_be_taken_over(server, dealer):
    with zmq.Context() as context:
        first, second = (context.socket(zmq.DEALER) for _ in range(2))
        for sock in (first, second):
            sock.setsockopt(zmq.ROUTING_ID, b"chosen")
            sock.setsockopt(zmq.LINGER, 0)
        with first, second:
            first.connect(f"tcp://127.0.0.1:{server.port}")
            first.send(b"first")
            assert first.poll(WAIT_S * 1000)
            first.recv()
            second.connect(f"tcp://127.0.0.1:{server.port}")
            second.send(b"second")
            assert not second.poll(300)
            first.send(b"again")
            assert first.poll(WAIT_S * 1000)
    assert server.got == [[b"first"], [b"again"]]
