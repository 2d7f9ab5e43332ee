"""The worker's command with a gateway."""

from __future__ import annotations

import socket
import struct

import pytest

from rpc_transport_ggml.wire import FLAG_COMPUTE, HEAD, Code, GraphRecord, TensorRecord, encode_graph

LOCAL = ("--device", "reference", "--listen", "tcp://127.0.0.1:0")
HELLO = b"\x0e" + struct.pack("<Q", 24) + bytes(24)


def gateway_of(worker) -> tuple[str, int]:
    line = worker.read_line()
    assert line.startswith("gateway tcp://")
    host, _, port = line.removeprefix("gateway tcp://").strip().rpartition(":")
    return host.strip("[]"), int(port)


def greet(place: tuple[str, int]) -> socket.socket:
    connected = socket.create_connection(place, 5)
    connected.sendall(HELLO)
    assert connected.recv(36, socket.MSG_WAITALL) == struct.pack("<QBBB", 28, 7, 0, 0) + bytes(25)
    return connected


@pytest.mark.parametrize("place", ["tcp://127.0.0.1:0", "ggml=tcp://localhost:0", "tcp://[::1]:0"])
def test_it_says_where_and_stops_cleanly(start, place):
    if "::1" in place and not _has_ipv6():
        pytest.skip("this machine has no IPv6 loopback address")
    worker = start("worker", *LOCAL, "--gateway", place)
    worker.ready()
    with greet(gateway_of(worker)) as connected:
        assert worker.stop() == (0, "", "")
        assert connected.recv(1) == b""


def test_two_gateways(start):
    worker = start("worker", *LOCAL, "--gateway", "tcp://127.0.0.1:0", "--gateway", "tcp://127.0.0.1:0")
    worker.ready()
    places = [gateway_of(worker), gateway_of(worker)]
    assert places[0] != places[1]
    for place in places:
        greet(place).close()


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("tcp://0.0.0.0:0", "--insecure"),
        ("ggmm=tcp://127.0.0.1:0", "did you mean 'ggml'?"),
        ("ipc:///tmp/nowhere", "listens on tcp://"),
        ("tcp://127.0.0.1", "'tcp://127.0.0.1'"),
        ("tcp://192.0.2.1:0", "--insecure"),
    ],
)
def test_what_cannot_be_is_one_clear_line(start, place, told):
    status, out, err = start("worker", *LOCAL, "--gateway", place).finish()
    assert (status, out) == (1, "")
    assert told in err
    assert err.count("\n") == 1


def test_an_address_of_another_machine_cannot_be_bound(start):
    status, _, err = start("worker", *LOCAL, "--insecure", "--gateway", "tcp://192.0.2.1:0").finish()
    assert status == 1
    assert "cannot listen on tcp://192.0.2.1:0" in err


def test_a_port_in_use(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, out, err = start("worker", *LOCAL, "--gateway", f"tcp://127.0.0.1:{port}").finish()
    assert (status, out) == (1, "")
    assert f"tcp://127.0.0.1:{port} is already in use" in err


def test_insecure_serves_other_machines(start):
    worker = start("worker", *LOCAL, "--insecure", "--gateway", "tcp://*:0")
    worker.ready()
    greet(("127.0.0.1", gateway_of(worker)[1])).close()


def test_the_list_names_it(start):
    status, out, _ = start("worker", "--list").finish()
    assert status == 0
    assert "gateways\n  ggml  usable" in out


def test_why_a_client_was_cut_is_in_the_log(start):
    worker = start("worker", *LOCAL, "--gateway", "tcp://127.0.0.1:0")
    worker.ready()
    with greet(gateway_of(worker)) as connected:
        connected.sendall(b"\x04" + struct.pack("<QQ", 8, 77))
        assert connected.recv(1) == b""
    status, _, err = worker.stop()
    assert status == 0
    assert "closed the ggml-rpc client 127.0.0.1:" in err
    assert "buffer 0x4d is not one of this connection's" in err


@pytest.mark.parametrize(("op", "name"), [(23, "SILU_BACK"), (98, "OPT_STEP_ADAMW"), (1000, "operation 1000")])
def test_an_operation_that_is_not_supported_is_in_the_log_and_the_worker_lives(start, op, name):
    worker = start("worker", *LOCAL, "--gateway", "tcp://127.0.0.1:0")
    worker.ready()
    place = gateway_of(worker)
    with greet(place) as connected:
        handle, _ = ask(connected, Code.ALLOC_BUFFER, struct.pack("<IQ", 0, 256), "<QQ")
        (base,) = ask(connected, Code.BUFFER_GET_BASE, struct.pack("<Q", handle), "<Q")
        fields = (handle, (8, 2, 1, 1), (4, 32, 64, 64), op, bytes(64), FLAG_COMPUTE, (), 0, 0, base, b"odd one")
        graph = encode_graph(0, GraphRecord((7,), [TensorRecord(7, 0, *fields)]))
        connected.sendall(HEAD.pack(Code.GRAPH_COMPUTE, len(graph)) + graph)
        assert connected.recv(1) == b""
    with greet(place) as connected:
        assert ask(connected, Code.DEVICE_COUNT, b"", "<I") == (1,)
    status, _, err = worker.stop()
    assert status == 0
    assert f"{name} 'odd one' F32 [8, 2, 1, 1] is not supported" in err


def ask(connected: socket.socket, code: Code, payload: bytes, form: str) -> tuple[int, ...]:
    connected.sendall(HEAD.pack(code, len(payload)) + payload)
    answer = connected.recv(8 + struct.calcsize(form), socket.MSG_WAITALL)
    return struct.unpack(form, answer[8:])


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
