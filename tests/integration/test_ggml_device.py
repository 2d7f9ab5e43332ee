"""Devices behind ggml-rpc servers: here behind gateways of our own workers, and servers that misbehave."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from rpc_backend.errors import (
    ConnectError,
    DeadlineError,
    DeviceError,
    EndpointError,
    GraphError,
    OutOfMemoryError,
    UnsupportedOpError,
    WorkerLostError,
)
from rpc_backend.graph import Graph, build, element_type
from rpc_backend.hookspecs import ProviderOptions
from rpc_backend.host import LLM
from rpc_backend.host.local_workers import LocalWorkers
from rpc_backend.protocol import parse_endpoint
from rpc_backend.registry import load_registry
from rpc_transport_ggml.device import GgmlDevice, open_devices

MIB = 1 << 20
F32 = element_type("F32")
OPTIONS = ProviderOptions(2.0, 20.0)


@pytest.fixture(scope="module")
def gateways() -> Iterator[list[str]]:
    with socket.socket() as one, socket.socket() as two:
        for probe in (one, two):
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in (one, two)]
    options = [part for port in ports for part in ("--gateway", f"tcp://127.0.0.1:{port}")]
    with LocalWorkers.start(1, backend="reference", memory="64MiB", options=options):
        yield [f"ggml://127.0.0.1:{port}" for port in ports]


@pytest.fixture
def device(gateways) -> Iterator[GgmlDevice]:
    (made,) = load_registry().open_devices(parse_endpoint(gateways[0]), OPTIONS)
    assert isinstance(made, GgmlDevice)
    yield made
    made.close()


def test_what_the_device_is(device, gateways):
    assert device.info.name == "ggml0@" + gateways[0].removeprefix("ggml://")
    assert device.info.alignment == 64
    assert not device.info.is_host
    assert device.memory() == (64 * MIB, 64 * MIB)


def test_bytes_go_in_and_out(device):
    data = np.random.default_rng(1).bytes(3 * MIB)
    buffer, other = device.alloc_buffer(3 * MIB), device.alloc_buffer(3 * MIB)
    buffer.write(0, memoryview(data))
    out = memoryview(bytearray(1000))
    buffer.read_into(77, out)
    assert out == data[77:1077]
    assert other.copy_from(10, buffer, 20, 1000)
    other.read_into(10, out)
    assert out == data[20:1020]
    buffer.fill(0, 500, 9)
    buffer.read_into(0, out)
    assert out == bytes((9,)) * 500 + data[500:1000]
    buffer.write(3 * MIB, memoryview(b""))
    buffer.read_into(3 * MIB, memoryview(bytearray()))
    for wrong in (lambda: buffer.read_into(3 * MIB - 1, out), lambda: buffer.write(-1, memoryview(b"x"))):
        with pytest.raises(GraphError, match="outside a buffer"):
            wrong()
    buffer.close()
    buffer.close()
    with pytest.raises(DeviceError, match="closed"):
        buffer.read_into(0, out)
    assert device.memory().free_nbytes == 61 * MIB


def test_memory_that_is_not_there(device):
    with pytest.raises(OutOfMemoryError, match=rf"{65 * MIB} bytes .* {64 * MIB} are free"):
        device.alloc_buffer(65 * MIB)


def test_graphs_run_and_are_repeated(device):
    a, b = build.leaf(F32, [8]), build.leaf(F32, [8])
    total = build.add(a, b)
    buffer, spare = device.alloc_buffer(96), device.alloc_buffer(64)
    for n, tensor in enumerate((a, b, total)):
        tensor.buffer, tensor.offset = buffer, 32 * n
    plan, stream = device.compile(Graph.of(total)), device.create_stream()
    stream.set_tensor(a, memoryview(np.arange(8, dtype=np.float32)).cast("B"))
    out = np.zeros(8, np.float32)
    for n in range(3):
        stream.set_tensor(b, memoryview(np.full(8, n, np.float32)).cast("B"))
        stream.compute(plan)
        stream.synchronize()
        stream.get_tensor(total, memoryview(out).cast("B"))
        assert out.tolist() == [k + n for k in range(8)]
        if n == 1:
            spare.close()  # with it the server forgets the graph
    assert device.alloc_size(total) == 32


def test_a_tensor_elsewhere(device):
    total = build.add(build.leaf(F32, [8]), build.leaf(F32, [8]))
    with pytest.raises(GraphError, match="not placed on a device of a ggml-rpc server"):
        device.compile(Graph.of(total))


def test_an_operation_whose_order_ggml_leaves_open(device):
    best = build.top_k(build.leaf(F32, [8]), 2)
    assert not device.supports_op(best)
    with pytest.raises(UnsupportedOpError, match="TOP_K"):
        device.compile(Graph.of(best))


def test_a_hang_up_names_the_server_and_what_it_was_asked(device, gateways):
    rows = build.get_rows(build.leaf(F32, [8, 2]), indices := build.leaf(element_type("I32"), [1]))
    buffer = device.alloc_buffer(256)
    for n, tensor in enumerate((rows.sources[0], indices, rows)):
        tensor.buffer, tensor.offset = buffer, 64 * n
    stream = device.create_stream()
    stream.set_tensor(indices, memoryview(struct.pack("<i", 1 << 30)))
    stream.compute(device.compile(Graph.of(rows)))
    for _ in range(2):
        with pytest.raises(WorkerLostError, match=rf"ggml-rpc server {gateways[0]} hung up at \w+"):
            stream.synchronize()
    buffer.close()


def test_models_run_on_them_as_on_workers(gateways, tiny_model):
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    with LLM(tiny_model, workers="none", device="reference", n_ctx=64) as llm:
        wanted = llm.logits(prompt)
    with LLM(tiny_model, workers=gateways, device="reference", n_ctx=64) as llm:
        assert [device.info.name[:6] for device in llm.devices.devices] == ["ggml0@", "ggml0@"]
        np.testing.assert_allclose(llm.logits(prompt), wanted, atol=1e-4)


class Server:
    """Takes one connection and answers HELLO and DEVICE_COUNT as told, then what `answers` has, then hangs up."""

    def __init__(self, *answers: bytes) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = parse_endpoint(f"ggml://127.0.0.1:{self.listening.getsockname()[1]}")
        self.answers = answers
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        connected, _ = self.listening.accept()
        with connected:
            for answer in self.answers:
                connected.recv(1 << 16)
                connected.sendall(answer)
            connected.recv(1 << 16)

    def close(self) -> None:
        self.thread.join(10)
        self.listening.close()


def reply(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def hello(*version: int) -> bytes:
    return reply(bytes(version) + bytes(25))


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def start(*answers: bytes) -> Server:
        made.append(Server(*answers))
        return made[-1]

    yield start
    for server in made:
        server.close()


@pytest.mark.parametrize("version", [(6, 0, 0), (8, 0, 0), (7, 1, 0)])
def test_another_version(serve, version):
    told = r"speaks version {}\.{}\.{}, this side 7\.0\.0".format(*version)
    with pytest.raises(ConnectError, match=told):
        open_devices(serve(hello(*version)).endpoint, OPTIONS)


@pytest.mark.parametrize("answers", [(), (b"HTTP/1.1 400 Bad Request\r\n\r\n",), (hello(7, 0, 0),)])
def test_who_is_no_server(serve, answers):
    server = serve(*answers)
    with pytest.raises(ConnectError, match=f"{server.endpoint} is no ggml-rpc server that can be used"):
        open_devices(server.endpoint, OPTIONS)


def test_nobody_is_there():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectError, match=f"no ggml-rpc server answers at ggml://127.0.0.1:{port}"):
        open_devices(parse_endpoint(f"ggml://127.0.0.1:{port}"), OPTIONS)


def test_a_server_that_has_another_client():
    """It is connected by the system, and not served."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        endpoint = parse_endpoint(f"ggml://127.0.0.1:{busy.getsockname()[1]}")
        with pytest.raises(ConnectError, match="serves one client at a time"):
            open_devices(endpoint, ProviderOptions(0.2, 1.0))


def test_a_server_that_does_not_answer_any_more(serve):
    one = struct.pack("<I", 1)
    server = serve(hello(7, 0, 0), reply(one), reply(struct.pack("<Q", 64)), reply(struct.pack("<Q", MIB)), b"")
    (device,) = open_devices(server.endpoint, ProviderOptions(2.0, 0.3))
    with pytest.raises(DeadlineError, match="did not answer GET_DEVICE_MEMORY in time"):
        device.memory()
    with pytest.raises(DeadlineError):
        device.memory()


def test_what_is_no_place():
    with pytest.raises(EndpointError, match="ggml://host:port"):
        open_devices(parse_endpoint("ggml:///nowhere"), OPTIONS)
