"""The index of a model file: made once, and never believed further than it can be checked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import xxhash

from rpc_backend.errors import ModelError
from rpc_backend.gguf_file import GgufFile
from rpc_backend.testing.gguf_writer import write_tiny_model
from rpc_backend.worker.content import Content
from rpc_backend.worker.model_index import (
    FileState,
    ModelIndex,
    build_index,
    index_paths,
    load_index,
    save_index,
)

STATE = FileState(1000, 77)
INDEX = ModelIndex(STATE, ((0, Content(bytes(range(16)), 10)), (990, Content(bytes(16), 10))))


def never() -> bool:
    return False


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("n_threads", [1, 3])
def test_every_tensor_is_in_the_index(model, n_threads):
    index = build_index(model, n_threads=n_threads, is_stopped=never)

    assert index is not None
    assert index.state == FileState.of(os.stat(model))
    content = model.read_bytes()
    expected = {xxhash.xxh3_128(tensor.data).digest() for tensor in GgufFile.open(model).tensors.values()}
    assert {found.digest for _, found in index.tensors} == expected
    for start, found in index.tensors:
        assert xxhash.xxh3_128(content[start : start + found.nbytes]).digest() == found.digest


def test_a_file_that_changes_meanwhile_has_no_index_yet(model):
    def change() -> bool:
        os.utime(model, (1, 1))
        return False

    assert build_index(model, n_threads=1, is_stopped=change) is None


def test_making_one_stops_when_it_should(model):
    assert build_index(model, n_threads=1, is_stopped=lambda: True) is None


@pytest.mark.parametrize("damage", [lambda data: data[:-100], lambda data: b"GGML" + data[4:], lambda data: b""])
def test_what_is_no_gguf_file_is_an_error(model, damage):
    model.write_bytes(damage(model.read_bytes()))
    with pytest.raises(ModelError, match=r"tiny\.gguf"):
        build_index(model, n_threads=1, is_stopped=never)


def test_an_index_is_kept_beside_its_file(tmp_path):
    paths = index_paths(tmp_path / "m.gguf", tmp_path / "other")
    assert save_index(paths, INDEX)
    assert os.listdir(tmp_path) == ["m.gguf.digests"]
    assert load_index(paths, STATE) == INDEX


def test_an_index_is_kept_elsewhere_if_it_must_be(tmp_path):
    paths = index_paths(Path("/proc/m.gguf"), tmp_path / "other")
    assert save_index(paths, INDEX)
    assert load_index(paths, STATE) == INDEX
    assert paths[1].parent == tmp_path / "other"
    assert paths[1] != index_paths(Path("/proc/n.gguf"), tmp_path / "other")[1]


def test_an_index_that_can_be_kept_nowhere(caplog):
    paths = index_paths(Path("/proc/m.gguf"), Path("/proc/none"))
    assert not save_index(paths, INDEX)
    assert load_index(paths, STATE) is None
    assert not save_index(index_paths(Path("/proc/m.gguf"), None), INDEX)


@pytest.mark.parametrize("state", [FileState(1001, 77), FileState(1000, 78)])
def test_an_index_of_another_state_is_none(tmp_path, state):
    paths = index_paths(tmp_path / "m.gguf", None)
    save_index(paths, INDEX)
    assert load_index(paths, state) is None


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"}, {"nbytes": -1}, {"nbytes": "1000"}, {"nbytes": True}, {"mtime_ns": None},
        {"tensors": 7}, {"tensors": [[0, 10]]}, {"tensors": [[0, 10, "zz" * 16]]}, {"tensors": [[0, 10, "00"]]},
        {"tensors": [[-1, 10, "00" * 16]]}, {"tensors": [[0, 1001, "00" * 16]]}, {"tensors": [[0.5, 1, "00" * 16]]},
        {"tensors": [[0, 10, 5]]}, {"tensors": [None]},
    ],
)  # fmt: skip
def test_a_malformed_index_is_made_again(tmp_path, caplog, change):
    paths = index_paths(tmp_path / "m.gguf", None)
    save_index(paths, INDEX)
    fields = json.loads(paths[0].read_text())
    paths[0].write_text(json.dumps({**fields, **change}))
    assert load_index(paths, STATE) is None
    assert "is made again" in caplog.text


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[]", b"7", b"{", b"[" * 100_000, b"{}"])
def test_a_file_that_is_no_index_is_made_again(tmp_path, caplog, text):
    paths = index_paths(tmp_path / "m.gguf", None)
    paths[0].write_bytes(text)
    assert load_index(paths, STATE) is None
    assert "is made again" in caplog.text


def test_an_index_without_end_is_not_read(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("rpc_backend.worker.model_index._MAX_INDEX_NBYTES", 100)
    paths = index_paths(tmp_path / "m.gguf", None)
    save_index(paths, INDEX)
    assert load_index(paths, STATE) is None
    assert "more than 100 bytes" in caplog.text
