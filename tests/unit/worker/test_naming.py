"""Weights asked for by FNV-1a, as clients of ggml-rpc do: what is named, and for whom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash

from rpc_backend.gguf_file import GgufFile
from rpc_backend.protocol import commands as c
from rpc_backend.protocol import records as r
from rpc_backend.testing.devices import NullDevice
from rpc_backend.testing.gguf_writer import write_tiny_model
from rpc_backend.testing.inline_worker import InlineWorker
from rpc_backend.testing.raw_client import RawClient, leaf_record
from rpc_backend.worker import WorkerConfig
from rpc_backend.worker.fnv import Fnv1a

NBYTES = 4096


@pytest.fixture(autouse=True)
def small_weights_count(monkeypatch):
    monkeypatch.setattr("rpc_backend.worker.naming.MIN_NBYTES", 1000)


@pytest.fixture
def data() -> bytes:
    return os.urandom(NBYTES)


def fnv(data: bytes) -> bytes:
    hashed = Fnv1a()
    hashed.update(memoryview(data))
    return hashed.digest()


class Client(RawClient):
    """A client with one buffer of weights."""

    def __init__(self, worker: InlineWorker, nbytes: int = 4 * NBYTES) -> None:
        super().__init__(worker)
        self.record = leaf_record(self.alloc(nbytes, usage="weights"), nbytes)
        self.nbytes = nbytes

    def has(self, name: bytes, nbytes: int = NBYTES) -> bool:
        return self.ask(c.SET_TENSOR_HASH, r.TensorHash(self.record, 0, nbytes, name)).result

    def write(self, data: bytes) -> None:
        self.say(c.SET_TENSOR, r.TensorRange(self.record, 0, len(data)), payload=data)

    def reads(self, nbytes: int = NBYTES) -> bytes:
        return self.read(self.record[8], self.nbytes)[:nbytes]


def served(folder: Path, *, models: Path | None = None, is_named: bool = True, has_cache: bool = True) -> InlineWorker:
    config = WorkerConfig(
        (),
        cache_folder=folder if has_cache else None,
        model_folders=() if models is None else (models,),
        names_file=folder / "names" if is_named else None,
    )
    return InlineWorker([NullDevice()], config)


def test_what_was_uploaded_under_a_name_is_found_by_it(tmp_path, data):
    worker = served(tmp_path)
    first = Client(worker)
    assert not first.has(fnv(data))
    first.write(data)
    second = Client(worker)
    assert second.has(fnv(data))
    assert second.reads() == data
    assert Client(served(tmp_path)).has(fnv(data))
    counts = second.ask(c.STATS, r.Empty()).weights
    assert (counts["cache_misses"], counts["cache_hits"], counts["nbytes_stored"]) == (1, 1, NBYTES)
    assert second.has(xxhash.xxh3_128_digest(data)), "a client of ours finds it by its digest"


def test_what_a_client_of_ours_uploaded_is_found_too(tmp_path, data):
    worker = served(tmp_path, is_named=False)
    first = Client(worker)
    assert not first.has(xxhash.xxh3_128_digest(data))
    first.write(data)
    assert not first.has(fnv(data)), "no gateway, no names"
    second = Client(served(tmp_path))
    assert second.has(fnv(data))
    assert second.reads() == data


def test_a_lying_client_harms_nobody(tmp_path, data):
    """It uploads something else than it asked for: that is kept under its own name."""
    worker, other = served(tmp_path), os.urandom(NBYTES)
    liar = Client(worker)
    assert not liar.has(fnv(data))
    liar.write(other)
    honest = Client(worker)
    assert not honest.has(fnv(data))
    honest.write(data)
    for wanted in (data, other):
        client = Client(worker)
        assert client.has(fnv(wanted))
        assert client.reads() == wanted


def test_tensors_of_model_files_are_found(tmp_path):
    (tmp_path / "models").mkdir()
    model = write_tiny_model(tmp_path / "models" / "m.gguf")
    worker = served(tmp_path / "cache", models=model.parent, has_cache=False)
    client = Client(worker, nbytes=1 << 20)
    tensors = [tensor.data.tobytes() for tensor in GgufFile.open(model).tensors.values()]
    assert any(len(data) >= 1000 for data in tensors)
    for data in tensors:
        assert client.has(fnv(data), len(data)) == (len(data) >= 1000)
        if len(data) >= 1000:
            assert client.reads(len(data)) == data
    assert Client(served(tmp_path / "cache", models=model.parent, has_cache=False), nbytes=1 << 20).has(
        fnv(max(tensors, key=len)), max(map(len, tensors))
    )


def test_a_damaged_entry_is_not_named_and_not_given(tmp_path, data):
    unnamed = served(tmp_path, is_named=False)
    client = Client(unnamed)
    client.has(xxhash.xxh3_128_digest(data))
    client.write(data)
    entry = next(tmp_path.glob("*.weights"))
    entry.write_bytes(bytes(NBYTES))
    damaged = Client(served(tmp_path))
    assert not damaged.has(fnv(bytes(NBYTES)))
    assert not damaged.has(fnv(data))


def test_an_entry_that_is_damaged_later_is_sent_again(tmp_path, data):
    worker = served(tmp_path)
    client = Client(worker)
    client.has(fnv(data))
    client.write(data)
    next(tmp_path.glob("*.weights")).write_bytes(bytes(NBYTES))
    again = Client(worker)
    assert not again.has(fnv(data))
    again.write(data)
    assert Client(worker).has(fnv(data))


def test_without_a_cache_every_name_is_unknown(tmp_path, data):
    client = Client(InlineWorker([NullDevice()], WorkerConfig((), names_file=tmp_path / "names")))
    assert not client.has(fnv(data))
    client.write(data)
    assert not client.has(fnv(data))
