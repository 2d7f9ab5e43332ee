"""Endpoints as ZeroMQ addresses, and paths that binding would silently take away."""

import socket

import pytest

from rpc_backend.errors import ConfigError, ConnectError, EndpointError
from rpc_backend.protocol import parse_endpoint
from rpc_transport_tcp.transport import InlineTransport

TRANSPORT = InlineTransport()


def listen_address(text):
    return TRANSPORT.listen_address(parse_endpoint(text, listen=True))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", "tcp://127.0.0.1:0"),
        ("[::1]:5", "tcp://[::1]:5"),
        ("*:5", "tcp://*:5"),
        ("localhost:5", "tcp://127.0.0.1:5"),
        ("ipc://@abstract", "ipc://@abstract"),
    ],
)
def test_addresses_to_listen_on(text, address):
    assert listen_address(text) == address


def test_a_name_with_two_addresses_is_tried_at_both_and_bound_at_ipv4(monkeypatch):
    answer = [(0, 0, 0, "", (host, 5)) for host in ("::1", "127.0.0.1", "::1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: answer)
    endpoint = parse_endpoint("both:5")
    assert list(TRANSPORT.connect_addresses(endpoint)) == ["tcp://[::1]:5", "tcp://127.0.0.1:5"]
    assert TRANSPORT.listen_address(endpoint) == "tcp://127.0.0.1:5"


def test_a_name_without_an_address_is_an_error_that_names_the_endpoint(monkeypatch):
    def fail(*args, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(ConnectError, match=r"tcp://nowhere:5.*not known"):
        TRANSPORT.connect_addresses(parse_endpoint("nowhere:5"))
    with pytest.raises(EndpointError, match=r"tcp://nowhere:5.*not known"):
        TRANSPORT.listen_address(parse_endpoint("nowhere:5"))


def test_a_path_is_taken_only_if_nobody_serves_it(tmp_path):
    path = str(tmp_path / "socket")
    assert listen_address(f"ipc://{path}") == f"ipc://{path}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        with pytest.raises(ConfigError, match="already in use"):
            listen_address(f"ipc://{path}")
    assert listen_address(f"ipc://{path}") == f"ipc://{path}", "a socket left by a dead worker is no obstacle"


def test_a_file_that_is_no_socket_is_not_overwritten(tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(EndpointError, match="no socket"):
        listen_address(f"ipc://{path}")
    assert path.read_text() == "data"
