"""Weights that a client of ggml-rpc asks for by their hash, on a worker without sockets or threads."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from rpc_backend.testing.devices import NullDevice
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.worker import WorkerConfig
from rpc_backend.worker.cache_folder import CacheFolder
from rpc_backend.worker.fnv import Fnv1a
from rpc_transport_ggml.requests import HANDLERS, Client
from rpc_transport_ggml.wire import Code, bytes_record, encode_tensor
from rpc_transport_ggml.worker_session import WorkerSession

DATA = b"foobar" * 1000


@pytest.fixture(autouse=True)
def small_weights_count(monkeypatch):
    monkeypatch.setattr("rpc_backend.worker.naming.MIN_NBYTES", len(DATA))


class Peer:
    """A client with one buffer, and the tensor in it that is to become DATA."""

    def __init__(self, worker: InlineWorker) -> None:
        self.client = Client(WorkerSession(worker.service.connect_local, lambda: None))
        answer = HANDLERS[Code.ALLOC_BUFFER].run(self.client, 0, 2 * len(DATA))
        assert isinstance(answer, bytes)
        (self.region,) = self.client.places._regions.values()
        self.raw = encode_tensor(bytes_record(self.region.handle, self.region.base + 64, len(DATA)))

    def has(self, name: int, offset: int = 0) -> bool:
        return HANDLERS[Code.SET_TENSOR_HASH].run(self.client, self.raw, offset, name) == b"\1"

    def write(self, data: bytes) -> None:
        message = _Bytes(self.raw + struct.pack("<BQ", 1, 0) + data)
        HANDLERS[Code.SET_TENSOR].run(self.client, message, len(message.data))
        self.client.steps.finish()

    def read(self) -> bytes:
        answer = HANDLERS[Code.GET_TENSOR].run(self.client, self.raw, 0, len(DATA))
        return b"".join(map(bytes, answer.parts))


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, nbytes: int) -> memoryview:
        taken, self.data = self.data[:nbytes], self.data[nbytes:]
        return memoryview(taken)

    def read_into(self, out: memoryview) -> None:
        out[:] = self.read(out.nbytes)


def name_of(data: bytes) -> int:
    hashed = Fnv1a()
    hashed.update(memoryview(data))
    return int.from_bytes(hashed.digest(), "big")


def served(folder: Path) -> InlineWorker:
    return InlineWorker([NullDevice()], WorkerConfig((), cache_folder=folder, names_file=folder / "names"))


def test_a_second_upload_is_not_needed(tmp_path):
    with served(tmp_path) as worker:
        first = Peer(worker)
        assert not first.has(name_of(DATA))
        first.write(DATA)

        second = Peer(worker)
        assert not second.has(name_of(DATA), offset=4), "only whole tensors are known"
        assert second.has(name_of(DATA))
        assert second.read() == DATA


def test_what_a_liar_uploaded_is_not_given_to_others(tmp_path):
    with served(tmp_path) as worker:
        liar = Peer(worker)
        assert not liar.has(name_of(DATA))
        liar.write(bytes(len(DATA)))
        assert not Peer(worker).has(name_of(DATA))


def test_a_worker_that_keeps_nothing_declines():
    with InlineWorker([NullDevice()]) as worker:
        peer = Peer(worker)
        assert not peer.has(name_of(DATA))
        peer.write(DATA)
        assert not peer.has(name_of(DATA))


def test_whatever_is_asked_for_and_uploaded_the_cache_is_sound(tmp_path):
    rnd = random.Random(3)
    contents = [rnd.randbytes(len(DATA)) for _ in range(4)]
    known = {name_of(data): data for data in contents}
    with served(tmp_path) as worker:
        for _ in range(200):
            peer, name = Peer(worker), name_of(rnd.choice(contents))
            if peer.has(name, rnd.choice((0, 0, 0, 1, 2**64 - 1))):
                assert peer.read() == known[name]
            for _ in range(rnd.randrange(3)):
                peer.write(rnd.choice(contents))
                if rnd.random() < 0.3:
                    HANDLERS[Code.FREE_BUFFER].run(peer.client, peer.region.handle)
                    break
    folder = CacheFolder(tmp_path)
    assert 0 < len(folder.entries()) <= len(contents)
    assert all(folder.is_sound(entry) for entry in folder.entries())
