"""Connecting and binding: each way to fail has its cause, its endpoint, and an end within the timeout."""

import socket
import threading
import time

import pytest
import zmq

from rpc_backend.errors import ConfigError, ConnectError, EndpointError, WorkerLostError
from rpc_backend.fabric import FabricOptions, connect, listen
from rpc_backend.protocol import parse_endpoint
from rpc_backend.registry import load_registry

TIMEOUT_MS = 600
MARGIN_S = 1.5
WAIT_S = 20


def try_connect(text, on_lost=print, on_message=print):
    endpoint = parse_endpoint(text)
    return connect(
        endpoint, load_registry().transport_for(endpoint.scheme), on_message=on_message, on_lost=on_lost,
        options=FabricOptions(connect_timeout_ms=TIMEOUT_MS),
    )  # fmt: skip


def refused(text):
    start = time.monotonic()
    with pytest.raises(ConnectError) as caught:
        try_connect(text)
    assert time.monotonic() - start < TIMEOUT_MS / 1000 + MARGIN_S
    assert str(parse_endpoint(text)) in str(caught.value)
    return str(caught.value)


def bind(*texts, **callbacks):
    handlers = {"on_message": lambda peer, frames: None, "on_peer_lost": lambda peer: None} | callbacks
    return listen([parse_endpoint(t, listen=True) for t in texts], load_registry().transport_for, **handlers)


@pytest.fixture
def stranger():
    """Serve another protocol: accept and say `answer` (None is nothing, empty hangs up); returns the endpoint."""
    servers, connections = [], []

    def serve(answer):
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def accept():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connections.append(connection)
                if answer:
                    connection.sendall(answer)
                if answer == b"":
                    connection.close()

        threading.Thread(target=accept, daemon=True).start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield serve
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
    for connection in connections:
        connection.close()


def test_nobody_there_is_said_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "nobody listens there" in refused(f"127.0.0.1:{port}")


def test_no_such_path(tmp_path):
    assert "nobody listens there" in refused(f"ipc://{tmp_path}/nothing")


def test_a_name_that_cannot_be_resolved(monkeypatch):
    def fail(*args, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert "not known" in refused("nowhere.invalid:5555")


def test_a_name_service_that_does_not_answer(monkeypatch):
    release = threading.Event()

    def hang(*args, **options):
        release.wait(WAIT_S)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        assert "no answer within 0.6 s" in refused("slow.invalid:5555")
    finally:
        release.set()


def test_something_that_accepts_and_stays_silent(stranger):
    assert "did not greet as a worker" in refused(stranger(None))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x00" * 64,
        b"\xff" * 64,
        b"\x01\x00\x00\x00",
    ],
    ids=["hangs up", "http", "ssh", "zeros", "ones", "old zmtp"],
)
def test_something_that_speaks_another_language(stranger, answer):
    message = refused(stranger(answer))
    assert "does not speak the language of a worker" in message or "did not greet as a worker" in message


@pytest.mark.parametrize("kind", [zmq.PUB, zmq.REP, zmq.PULL])
def test_a_zeromq_socket_of_another_kind(kind):
    with zmq.Context() as context, context.socket(kind) as server:
        server.setsockopt(zmq.LINGER, 0)
        port = server.bind_to_random_port("tcp://127.0.0.1")
        if kind == zmq.REP:  # a DEALER may talk to it; HELLO then finds out
            try_connect(f"127.0.0.1:{port}").abort()
        else:
            assert "does not speak the language of a worker" in refused(f"127.0.0.1:{port}")


def test_two_workers_on_one_port():
    first = bind("127.0.0.1:0")
    try:
        with pytest.raises(ConfigError, match="already in use, perhaps by another worker") as caught:
            bind(first.names[0])
        assert first.names[0] in str(caught.value)
        try_connect(first.names[0]).close()
    finally:
        first.close()
    bind(first.names[0]).close()


def test_two_workers_on_one_path(tmp_path):
    first = bind(f"ipc://{tmp_path}/socket")
    try:
        with pytest.raises(ConfigError, match="already in use"):
            bind(first.names[0])
        try_connect(first.names[0]).close()
    finally:
        first.close()


@pytest.mark.parametrize("text", ["192.0.2.1:0", "ipc:///no/such/folder/socket", "ipc:///tmp/" + "x" * 200])
def test_a_place_that_is_not_of_this_machine(text):
    with pytest.raises(EndpointError, match="cannot listen on"):
        bind(text)


def test_nothing_to_listen_on():
    with pytest.raises(EndpointError, match="no endpoint"):
        bind()


def test_several_endpoints_serve_at_once_and_a_doubled_one_counts_once(tmp_path):
    got = []
    arrived = threading.Semaphore(0)
    listener = bind(
        "127.0.0.1:0", "127.0.0.1:0", f"ipc://{tmp_path}/socket",
        on_message=lambda peer, frames: (got.append(bytes(frames[0])), arrived.release()),
    )  # fmt: skip
    try:
        assert len(listener.names) == 2
        assert listener.bound_endpoints[0].port > 0
        channels = [try_connect(name) for name in listener.names]
        for name, channel in zip(listener.names, channels, strict=True):
            channel.send([name.encode()])
        assert all(arrived.acquire(timeout=WAIT_S) for _ in channels)
        assert sorted(got) == sorted(name.encode() for name in listener.names)
        for channel in channels:
            channel.abort()
    finally:
        listener.close()


def test_a_restarted_worker_gets_no_old_messages():
    lost, got = threading.Semaphore(0), []
    first = bind("127.0.0.1:0")
    name = first.names[0]
    channel = try_connect(name, on_lost=lambda error: lost.release())
    first.abort()
    assert lost.acquire(timeout=WAIT_S)
    with pytest.raises(WorkerLostError, match=name):
        channel.send([b"for the first"])
    second = bind(name, on_message=lambda peer, frames: got.append(bytes(frames[0])))
    try:
        time.sleep(0.3)
        assert got == []
        assert not channel.is_open
        assert not lost.acquire(timeout=0.1), "a loss is reported once"
    finally:
        channel.close()
        second.close()
