"""Endpoints: what parses, what does not, and that refusals quote the text."""

import pytest

from rpc_backend.errors import ConfigError, EndpointError
from rpc_backend.protocol.endpoint import Endpoint, check_bind, parse_endpoint, parse_workers


@pytest.mark.parametrize(
    ("text", "expected", "canonical"),
    [
        ("127.0.0.1:5555", Endpoint("tcp", "127.0.0.1", 5555), "tcp://127.0.0.1:5555"),
        ("localhost:1", Endpoint("tcp", "localhost", 1), "tcp://localhost:1"),
        ("[::1]:65535", Endpoint("tcp", "::1", 65535), "tcp://[::1]:65535"),
        ("tcp://[FE80::1%eth0]:7", Endpoint("tcp", "fe80::1%eth0", 7), "tcp://[fe80::1%eth0]:7"),
        ("TCP://Big-Box.lan:80", Endpoint("tcp", "big-box.lan", 80), "tcp://big-box.lan:80"),
        ("ipc:///tmp/a b.sock", Endpoint("ipc", path="/tmp/a b.sock"), "ipc:///tmp/a b.sock"),
        ("ipc://@abstract", Endpoint("ipc", path="@abstract"), "ipc://@abstract"),
        ("rdma://node7:18515", Endpoint("rdma", "node7", 18515), "rdma://node7:18515"),
        ("shm://anything/at?all", Endpoint("shm", path="anything/at?all"), "shm://anything/at?all"),
    ],
)
def test_valid_endpoints_parse_to_their_canonical_text(text, expected, canonical):
    parsed = parse_endpoint(text)
    assert parsed == expected
    assert str(parsed) == canonical
    assert parse_endpoint(canonical) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:5x",
        "127.0.0.1:٥",
        " 127.0.0.1:5555",
        "127.0.0.1:5555 ",
        "127.0.0.1: 5555",
        "host name:5555",
        "127.0.0.1:5555\n",
        "::1:5555",
        "[::1]",
        "[::1]:",
        "[nonsense]:5555",
        "[127.0.0.1]:5555",
        "[::1:5555",
        "300.0.0.1:5555",
        "1.2.3:5555",
        ":5555",
        "*:5555",
        "tcp://",
        "tcp://host",
        "ipc://",
        "http://",
        "tcp://a:1:2",
        "tcp://user@host:1",
        "tcp://-a:1",
        "tcp://a:99999999999999999999",
    ],
)
def test_malformed_endpoints_are_refused_with_the_text_quoted(text):
    with pytest.raises(EndpointError) as caught:
        parse_endpoint(text)
    assert repr(text) in str(caught.value)


def test_listening_may_leave_port_and_host_open():
    assert parse_endpoint("tcp://*:0", listen=True) == Endpoint("tcp", "*", 0)
    assert parse_endpoint("[::]:0", listen=True).port == 0
    with pytest.raises(EndpointError, match="from 0 to 65535"):
        parse_endpoint("127.0.0.1:65536", listen=True)


def test_a_worker_named_twice_is_one_worker_and_order_is_kept():
    found = parse_workers("localhost:2,127.0.0.1:1,tcp://127.0.0.1:1,localhost:2")
    assert [str(item) for item in found] == ["tcp://localhost:2", "tcp://127.0.0.1:1"]
    assert parse_workers(["127.0.0.1:1", "tcp://127.0.0.1:1"]) == [Endpoint("tcp", "127.0.0.1", 1)]


@pytest.mark.parametrize("workers", ["", [], "127.0.0.1:1,", "127.0.0.1:1,,127.0.0.1:2"])
def test_a_list_without_or_with_an_empty_endpoint_is_refused(workers):
    with pytest.raises(EndpointError):
        parse_workers(workers)


@pytest.mark.parametrize(
    ("text", "is_local"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("ipc:///x", True),
        ("0.0.0.0:1", False),
        ("*:1", False),
        ("[::]:1", False),
        ("192.168.1.2:1", False),
        ("localhost.evil.net:1", False),
    ],
)
def test_only_this_machine_may_be_served_without_keys(text, is_local):
    endpoint = parse_endpoint(text, listen=True)
    assert endpoint.is_loopback() is is_local
    check_bind(endpoint, insecure=True)
    check_bind(endpoint, has_keys=True)
    if is_local:
        check_bind(endpoint)
        return
    with pytest.raises(ConfigError, match="--insecure") as caught:
        check_bind(endpoint)
    assert str(endpoint) in str(caught.value)
    assert "keys" in str(caught.value)
