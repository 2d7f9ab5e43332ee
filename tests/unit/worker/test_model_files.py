"""Weights out of the worker's own model files: what is found, and what is left out."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
import xxhash

from rpc_backend.gguf_file import GgufFile
from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_backend.testing.gguf_writer import write_tiny_model
from rpc_backend.worker import model_files
from rpc_backend.worker.content import Content
from rpc_backend.worker.model_files import ModelFiles
from rpc_backend.worker.tasks import Place


def run_now(name, body) -> None:
    body()


@pytest.fixture(autouse=True)
def _no_gap_between_scans(monkeypatch):
    monkeypatch.setattr(model_files, "_SCAN_GAP_S", 0.0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    path = write_tiny_model(tmp_path / "models" / "tiny.gguf")
    os.utime(path, (1000, 1000))
    return path


@pytest.fixture
def weights(model: Path) -> list[bytes]:
    """The bytes of the tensors, of which one is in the file once."""
    return [tensor.data.tobytes() for tensor in GgufFile.open(model).tensors.values()]


def opened(*folders: Path, index_folder: Path | None = None) -> ModelFiles:
    files = ModelFiles(folders, index_folder, run_now, n_threads=1)
    files.start(1.0)
    return files


def has(files: ModelFiles, data: bytes) -> bool:
    """Whether `data` is found; if so, it is what comes."""
    place = Place(HostBuffer(NullDevice(), len(data)), 0, len(data))
    found = files.load(Content(xxhash.xxh3_128(data).digest(), len(data)), place)
    out = bytearray(len(data))
    place.buffer.read_into(0, memoryview(out))
    assert bytes(out) == (data if found else bytes(len(data)))
    return found


def test_every_tensor_is_found(model, weights):
    files = opened(model.parent)
    assert all(has(files, data) for data in weights)
    assert not has(files, b"something else")
    assert not has(files, weights[0][:-1]), "the size is part of what is asked for"


def test_the_index_is_made_once(model, weights, monkeypatch):
    opened(model.parent)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the index was made again")

    monkeypatch.setattr(model_files, "build_index", fail)
    assert has(opened(model.parent), weights[0])


def test_a_file_that_appears_later_is_found_at_the_next_look(model, weights, tmp_path):
    files = opened(tmp_path / "models")
    other = write_tiny_model(tmp_path / "models" / "other.gguf", seed=5)
    data = next(iter(GgufFile.open(other).tensors.values())).data.tobytes()
    assert not has(files, data), "a miss has it look again"
    assert has(files, data)
    third = write_tiny_model(tmp_path / "models" / "third.gguf", seed=6)
    files.refresh()
    assert has(files, next(iter(GgufFile.open(third).tensors.values())).data.tobytes())


def test_looking_again_has_a_least_gap(model, tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "_SCAN_GAP_S", 1000.0)
    files = opened(model.parent)
    other = write_tiny_model(tmp_path / "models" / "other.gguf", seed=5)
    files.refresh()
    assert not has(files, next(iter(GgufFile.open(other).tensors.values())).data.tobytes())


def test_files_are_found_in_folders_below_and_through_links_but_once(model, weights, tmp_path):
    deep = tmp_path / "models" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "link.gguf").symlink_to(model)
    (deep / "loop").symlink_to(tmp_path / "models")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "snapshots").mkdir(parents=True)
    (elsewhere / "snapshots" / "m.gguf").symlink_to(model)

    files = opened(tmp_path / "models", elsewhere)
    assert has(files, weights[0])
    assert len(files._indexes) == 1


def test_a_file_that_vanishes_is_a_miss(model, weights):
    files = opened(model.parent)
    model.unlink()
    assert not has(files, weights[0])
    assert not has(files, weights[0])


def test_a_file_that_changed_is_a_miss_until_it_was_read_again(model, weights):
    files = opened(model.parent)
    write_tiny_model(model, seed=9)
    assert not has(files, weights[0])
    assert has(files, next(iter(GgufFile.open(model).tensors.values())).data.tobytes())


def test_a_change_that_size_and_time_do_not_show_is_found_by_the_digest(model, weights, caplog):
    files = opened(model.parent)
    tensor = next(iter(GgufFile.open(model).tensors.values()))
    with model.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(b"\xff" * 8)
    os.utime(model, (1000, 1000))

    assert not has(files, weights[0])
    assert "is wrong" in caplog.text
    with model.open("rb") as file:
        file.seek(tensor.offset)
        assert has(files, file.read(len(weights[0]))), "the index was made again"


def test_a_second_copy_serves_when_the_first_is_damaged(model, weights, tmp_path):
    shutil.copy(model, tmp_path / "models" / "a copy.gguf")
    files = opened(model.parent)
    (tmp_path / "models" / "a copy.gguf").write_bytes(b"")
    assert has(files, weights[0])


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-100], lambda data: b"nothing of ours", lambda data: b"", lambda data: data[:200]],
    ids=["truncated", "foreign", "empty", "cut in its head"],
)
def test_files_that_cannot_be_used_are_left_out_with_one_warning(model, weights, tmp_path, caplog, damage):
    bad = tmp_path / "models" / "bad.gguf"
    bad.write_bytes(damage(model.read_bytes()))
    os.utime(bad, (1000, 1000))
    files = opened(model.parent)
    assert has(files, weights[0])
    files.refresh()
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "bad.gguf" in warnings[0]


def test_a_file_that_is_still_being_written_is_no_warning(model, weights, caplog):
    data = model.read_bytes()
    model.write_bytes(data[:-100])
    files = opened(model.parent)
    assert not has(files, weights[0])
    assert caplog.records == []
    model.write_bytes(data)
    files.refresh()
    assert has(files, weights[0])


def test_pipes_and_folders_with_such_a_name_are_left_alone(model, weights, tmp_path):
    os.mkfifo(tmp_path / "models" / "pipe.gguf")
    (tmp_path / "models" / "folder.gguf").mkdir()
    (tmp_path / "models" / "dangling.gguf").symlink_to("nowhere")
    assert has(opened(model.parent), weights[0])


def test_a_folder_that_vanished_is_one_warning(tmp_path, caplog):
    files = opened(tmp_path / "none")
    files.refresh()
    assert not has(files, b"x")
    assert len(caplog.records) == 1


def test_an_index_with_another_place_gives_no_byte_that_was_not_asked_for(model, weights, tmp_path):
    opened(model.parent)
    index = model.with_name(model.name + ".digests")
    fields = json.loads(index.read_text())
    asked = next(data for data in weights if [len(other) for other in weights].count(len(data)) > 1)
    alike = [tensor for tensor in fields["tensors"] if tensor[1] == len(asked)]
    alike[0][0], alike[1][0] = alike[1][0], alike[0][0]
    index.write_text(json.dumps(fields))
    files = opened(model.parent)
    assert not has(files, asked)
    assert has(files, asked), "the index was made again"


def test_a_scan_that_takes_long_goes_on_while_the_worker_serves(model, weights, caplog):
    bodies = []
    files = ModelFiles([model.parent], None, lambda name, body: bodies.append(body), n_threads=1)
    files.start(0.01)
    assert "still being read" in caplog.text
    assert not has(files, weights[0])
    bodies[0]()
    assert has(files, weights[0])
    assert len(bodies) == 1, "one look at a time"


def test_after_the_end_nothing_is_read(model, weights):
    files = ModelFiles([model.parent], None, run_now, n_threads=1)
    files.close()
    files.refresh()
    assert not has(files, weights[0])
