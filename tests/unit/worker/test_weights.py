"""Weights by their digest, spoken to in records: what a worker puts in place, what it keeps, and for whom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash

from rpc_backend import errors
from rpc_backend.gguf_file import GgufFile
from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.protocol.negotiation import WEIGHT_CACHE, WEIGHT_SOURCE
from rpc_backend.testing.devices import NullDevice
from rpc_backend.testing.gguf_writer import write_tiny_model
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.testing.raw_client import RawClient, leaf_record
from rpc_backend.worker import WorkerConfig

NBYTES = 4096
CHUNK = 1000
NO_COUNTS = {
    "cache_hits": 0, "cache_misses": 0, "model_hits": 0,
    "nbytes_from_cache": 0, "nbytes_from_models": 0, "nbytes_stored": 0,
}  # fmt: skip


def digest_of(data: bytes) -> bytes:
    return xxhash.xxh3_128(data).digest()


class Client(RawClient):
    """A client with one buffer of weights."""

    def __init__(self, worker: InlineWorker, usage: str = "weights", nbytes: int = 4 * NBYTES) -> None:
        super().__init__(worker)
        self.nbytes = nbytes
        self.handle = self.alloc(nbytes, usage=usage)

    def has(self, data: bytes, at: int = 0, digest: bytes | None = None) -> bool:
        record = leaf_record(self.handle, self.nbytes)
        request = r.TensorHash(record, at, len(data), digest_of(data) if digest is None else digest)
        return self.ask(c.SET_TENSOR_HASH, request).result

    def write(self, data: bytes, at: int = 0) -> None:
        record = leaf_record(self.handle, self.nbytes)
        for start in range(0, len(data), CHUNK):
            part = data[start : start + CHUNK]
            self.say(c.SET_TENSOR, r.TensorRange(record, at + start, len(part)), payload=part)

    def counts(self) -> dict[str, int]:
        return self.ask(c.STATS, r.Empty()).weights


def served(folder: Path, **options) -> InlineWorker:
    return InlineWorker([NullDevice()], WorkerConfig((), cache_folder=folder, **options))


@pytest.fixture
def data() -> bytes:
    return os.urandom(NBYTES)


def test_a_worker_without_sources_has_no_ability_and_declines(data):
    worker = InlineWorker([NullDevice()])
    client = Client(worker)
    assert client.hello.abilities == []
    assert not client.has(data)
    client.write(data)
    assert not client.has(data)
    assert client.counts() == NO_COUNTS


def test_a_second_upload_is_not_needed(tmp_path, data):
    worker = served(tmp_path)
    first = Client(worker)
    assert first.hello.abilities == [WEIGHT_CACHE]
    assert not first.has(data, at=NBYTES)
    first.write(data, at=NBYTES)

    second = Client(worker)
    assert second.has(data, at=64)
    assert second.read(second.handle, 4 * NBYTES) == bytes(64) + data + bytes(3 * NBYTES - 64)
    assert second.counts() == NO_COUNTS | {
        "cache_misses": 1, "nbytes_stored": NBYTES, "cache_hits": 1, "nbytes_from_cache": NBYTES
    }  # fmt: skip
    assert not first.notices()
    assert not second.notices()


def test_another_worker_may_share_the_folder(tmp_path, data):
    client = Client(served(tmp_path))
    client.has(data)
    client.write(data)
    assert Client(served(tmp_path)).has(data)


def test_several_weights_are_asked_for_ahead(tmp_path):
    client = Client(served(tmp_path))
    weights = [os.urandom(NBYTES) for _ in range(4)]
    assert [client.has(data, at=index * NBYTES) for index, data in enumerate(weights)] == [False] * 4
    for index, data in enumerate(weights):
        client.write(data, at=index * NBYTES)
    other = Client(served(tmp_path))
    assert [other.has(data, at=index * NBYTES) for index, data in enumerate(weights)] == [True] * 4
    assert other.read(other.handle, 4 * NBYTES) == b"".join(weights)


def test_a_client_cannot_poison_the_cache(tmp_path, data):
    client = Client(served(tmp_path))
    assert not client.has(data)
    client.write(bytes(NBYTES))
    assert list(tmp_path.iterdir()) == []
    assert not client.has(data)


def test_an_upload_that_nobody_announced_or_that_is_not_whole_is_not_kept(tmp_path, data):
    client = Client(served(tmp_path))
    client.write(data)
    assert not client.has(data)
    client.write(data[:-1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("usage", ["any", "compute"])
def test_only_weights_are_kept_and_given(tmp_path, data, usage):
    worker = served(tmp_path)
    client = Client(worker, usage=usage)
    assert not client.has(data)
    client.write(data)
    assert list(tmp_path.iterdir()) == []
    weights = Client(worker)
    weights.has(data)
    weights.write(data)
    assert not client.has(data)


def test_a_damaged_entry_is_sent_again_and_kept_again(tmp_path, data):
    worker = served(tmp_path)
    client = Client(worker)
    client.has(data)
    client.write(data)
    entry = next(tmp_path.iterdir())
    entry.write_bytes(bytes(NBYTES))

    again = Client(worker)
    assert not again.has(data)
    assert again.read(again.handle, NBYTES) == bytes(NBYTES)
    again.write(data)
    assert entry.read_bytes() == data
    assert Client(worker).has(data)


def test_a_freed_buffer_is_forgotten(tmp_path, data):
    client = Client(served(tmp_path))
    client.has(data)
    client.say(c.FREE_BUFFER, r.BufferRef(client.handle))
    client.handle = client.alloc(client.nbytes, usage="weights")
    client.write(data)
    assert list(tmp_path.iterdir()) == []
    assert not client.notices()


@pytest.mark.parametrize("at", [1, 4 * NBYTES, -1, 1 << 62])
def test_a_range_outside_its_tensor_is_refused(tmp_path, data, at):
    client = Client(served(tmp_path))
    with pytest.raises(errors.GraphError):
        client.has(data, at=3 * NBYTES + at if at > 0 else at)


@pytest.mark.parametrize("digest", [b"", bytes(15), bytes(17), b"../../etc/passwd" * 4])
def test_a_digest_of_another_length_is_refused(tmp_path, data, digest):
    client = Client(served(tmp_path))
    with pytest.raises(errors.GraphError, match="xxh3-128"):
        client.has(data, digest=digest)
    assert not client.has(data)


def test_a_foreign_buffer_is_refused(tmp_path, data):
    worker = served(tmp_path)
    client, other = Client(worker), Client(worker)
    other.handle = client.handle
    with pytest.raises(errors.HandleError):
        other.has(data)


def test_an_unusable_folder_is_a_warning_and_no_ability(caplog, data):
    client = Client(served(Path("/proc/none/cache")))
    assert client.hello.abilities == []
    assert not client.has(data)
    client.write(data)
    assert client.read(client.handle, NBYTES) == data
    assert len(caplog.records) == 1


def test_weights_come_from_model_files_and_are_not_kept_twice(tmp_path):
    (tmp_path / "models").mkdir()
    model = write_tiny_model(tmp_path / "models" / "m.gguf")
    worker = served(tmp_path / "cache", model_folders=(tmp_path / "models",))
    tensors = [tensor.data.tobytes() for tensor in GgufFile.open(model).tensors.values()]
    client = Client(worker, nbytes=1 << 20)
    assert client.hello.abilities == [WEIGHT_CACHE, WEIGHT_SOURCE]
    for data in tensors:
        assert client.has(data)
        assert client.read(client.handle, len(data)) == data
    assert client.counts() == NO_COUNTS | {"model_hits": len(tensors), "nbytes_from_models": sum(map(len, tensors))}
    assert list((tmp_path / "cache").iterdir()) == []


def test_model_files_alone_keep_nothing(tmp_path, data):
    worker = InlineWorker([NullDevice()], WorkerConfig((), model_folders=(tmp_path,)))
    client = Client(worker)
    assert client.hello.abilities == [WEIGHT_SOURCE]
    assert not client.has(data)
    client.write(data)
    assert not client.has(data)
    assert client.counts() == NO_COUNTS


def test_a_new_session_finds_new_model_files(tmp_path, monkeypatch):
    monkeypatch.setattr("rpc_backend.worker.model_files._SCAN_GAP_S", 0.0)
    worker = InlineWorker([NullDevice()], WorkerConfig((), model_folders=(tmp_path,)))
    model = write_tiny_model(tmp_path / "m.gguf")
    data = next(iter(GgufFile.open(model).tensors.values())).data.tobytes()
    assert Client(worker, nbytes=1 << 20).has(data)


def test_freed_memory_is_there_for_others_even_while_it_is_stored(tmp_path, monkeypatch, data):
    bodies = []
    monkeypatch.setattr("rpc_backend.testing.inline_worker._run_now", lambda name, body: bodies.append(body))
    worker = InlineWorker([NullDevice()], WorkerConfig((), {0: 10_000}, cache_folder=tmp_path))
    client = Client(worker, nbytes=8_000)
    client.has(data)
    client.write(data)
    client.say(c.FREE_BUFFER, r.BufferRef(client.handle))
    assert client.ask(c.GET_DEVICE_MEMORY, r.DeviceRef(0)).free_nbytes == 10_000
    client.alloc(2_000)
    assert client.ask(c.GET_DEVICE_MEMORY, r.DeviceRef(0)).free_nbytes == 8_000

    client.alloc(8_000)
    assert client.ask(c.GET_DEVICE_MEMORY, r.DeviceRef(0)).free_nbytes == 0
    with pytest.raises(errors.OutOfMemoryError):
        client.alloc(1)
    for body in bodies:
        body()
    assert list(tmp_path.iterdir()) == []


def test_what_a_client_uploaded_is_stored_also_after_it_left(tmp_path, monkeypatch, data):
    bodies = []
    monkeypatch.setattr("rpc_backend.testing.inline_worker._run_now", lambda name, body: bodies.append(body))
    worker = served(tmp_path)
    client = Client(worker)
    client.has(data)
    client.write(data)
    client.say(c.GOODBYE, r.Empty())
    for body in bodies:
        body()
    other = Client(worker)
    assert other.has(data)
    assert other.ask(c.GET_DEVICE_MEMORY, r.DeviceRef(0)).free_nbytes == (1 << 30) - other.nbytes
