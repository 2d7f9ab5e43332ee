"""A folder of weights: what it gives, what it takes, and everything that may lie in it and is not ours."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import xxhash

from rpc_backend.errors import DeviceError
from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_backend.worker.cache_folder import CacheFolder
from rpc_backend.worker.content import Content
from rpc_backend.worker.tasks import Place

ZEROS = "0" * 32


def content_of(data: bytes) -> Content:
    return Content(xxhash.xxh3_128(data).digest(), len(data))


def place_of(data: bytes) -> Place:
    buffer = HostBuffer(NullDevice(), len(data))
    buffer.write(0, memoryview(data))
    return Place(buffer, 0, len(data))


def file_of(path: Path, data: bytes) -> Path:
    return path / f"{content_of(data).digest.hex()}-{len(data)}.weights"


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    folder = CacheFolder(tmp_path / "cache")
    folder.create()
    return folder


def store(folder: CacheFolder, data: bytes, limit_nbytes: int | None = None, *, said: Content | None = None) -> bool:
    return folder.store(said or content_of(data), place_of(data), limit_nbytes=limit_nbytes, is_stopped=lambda: False)


def load(folder: CacheFolder, data: bytes) -> bool:
    """Whether `data` is found; if so, it is what comes."""
    place = place_of(bytes(len(data)))
    found = folder.load(content_of(data), place)
    out = bytearray(len(data))
    place.buffer.read_into(0, memoryview(out))
    assert bytes(out) == (data if found else bytes(len(data)))
    return found


def names(folder: CacheFolder) -> list[str]:
    return sorted(os.listdir(folder.path))


def age(folder: CacheFolder, data: bytes, seconds: float) -> None:
    used = time.time() - seconds
    os.utime(file_of(folder.path, data), (used, used))


@pytest.mark.parametrize("nbytes", [1, 64, (1 << 20) + 1])
def test_what_was_stored_comes_back(folder, nbytes):
    data = os.urandom(nbytes)
    assert not load(folder, data)
    assert store(folder, data)
    assert load(folder, data)
    assert names(folder) == [file_of(folder.path, data).name]


def test_the_folder_is_for_its_owner_only(folder):
    assert folder.path.stat().st_mode & 0o077 == 0


def test_what_is_there_is_not_stored_again(folder):
    assert store(folder, b"weights")
    age(folder, b"weights", 1000)
    assert not store(folder, b"weights")
    assert time.time_ns() - folder.entries()[0].used_ns < 100e9, "asking to store it counts as use"


def test_a_client_cannot_store_under_a_digest_that_is_not_right(folder):
    assert not store(folder, b"poison!", said=content_of(b"weights"))
    assert names(folder) == []


def test_a_buffer_that_is_gone_leaves_nothing_behind(folder):
    place = place_of(b"weights")
    place.buffer.close()
    with pytest.raises(DeviceError):
        folder.store(content_of(b"weights"), place, limit_nbytes=None, is_stopped=lambda: False)
    assert names(folder) == []


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data + b"x", lambda data: bytes(len(data)), lambda data: b""],
    ids=["shorter", "longer", "zeroed", "empty"],
)  # fmt: skip
def test_a_damaged_entry_is_found_removed_and_logged(folder, caplog, damage):
    data = os.urandom(5000)
    store(folder, data)
    file_of(folder.path, data).write_bytes(damage(data))

    assert not folder.is_sound(folder.entries()[0])
    assert not load(folder, data)
    assert "damaged" in caplog.text
    assert names(folder) == []
    assert store(folder, data)
    assert load(folder, data)


def test_an_entry_of_the_wrong_size_is_replaced_when_stored_again(folder):
    file_of(folder.path, b"weights").write_bytes(b"")
    assert store(folder, b"weights")
    assert load(folder, b"weights")


# Things that are not ours


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt", ZEROS + "-1.WEIGHTS", "A" * 32 + "-1.weights", ZEROS[1:] + "-1.weights", ZEROS + "-01.weights",
        ZEROS + "--1.weights", ZEROS + "-1.weights\n", "٠" * 32 + "-1.weights", ZEROS + "-" + "9" * 30 + ".weights",
        ZEROS + "-1.weights.bak", b"\xff\xfe".decode(errors="surrogateescape"), ZEROS + "-1.weights.tmp",
    ],
)  # fmt: skip
def test_foreign_files_are_neither_listed_nor_removed(folder, name):
    (folder.path / name).write_bytes(b"x")
    assert folder.entries() == []
    assert folder.sweep() == 0
    assert folder.prune(0) == []
    assert os.listdir(folder.path) == [name]


def test_a_link_in_place_of_an_entry_is_not_followed(folder, tmp_path):
    secret = tmp_path / "elsewhere"
    secret.write_bytes(b"weights")
    file_of(folder.path, b"weights").symlink_to(secret)

    assert not load(folder, b"weights")
    assert folder.entries() == []
    folder.prune(0)
    assert store(folder, b"weights"), "the link itself is replaced"
    assert load(folder, b"weights")
    assert not file_of(folder.path, b"weights").is_symlink()
    assert secret.read_bytes() == b"weights"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_a_folder_or_a_pipe_in_place_of_an_entry_is_a_miss(folder, make):
    make(file_of(folder.path, b"weights"))
    assert not load(folder, b"weights")
    assert folder.entries() == []


def test_a_folder_in_place_of_an_entry_is_an_error_when_storing_and_nothing_is_left(folder):
    file_of(folder.path, b"weights").mkdir()
    with pytest.raises(OSError, match="directory"):
        store(folder, b"weights")
    assert names(folder) == [file_of(folder.path, b"weights").name]


def test_a_folder_that_vanished_is_a_miss_and_an_error_when_storing(folder):
    folder.path.rmdir()
    assert not load(folder, b"weights")
    with pytest.raises(FileNotFoundError):
        store(folder, b"weights")
    assert not folder.path.exists(), "its disk may be unmounted: it is not made anew"


# Limits


def test_the_entries_used_longest_ago_go_first(folder):
    one, two, three = (os.urandom(100) for _ in range(3))
    for seconds, data in enumerate((one, two)):
        store(folder, data, 250)
        age(folder, data, 100 - seconds)
    assert load(folder, one), "a hit is a use"
    assert store(folder, three, 250)
    assert [load(folder, data) for data in (one, two, three)] == [True, False, True]


def test_the_limit_holds_also_while_an_entry_is_written(tmp_path):
    sizes = []

    def write(file: int, data: memoryview) -> int:
        n_written = os.write(file, data)
        sizes.append(sum(item.stat().st_size for item in os.scandir(tmp_path)))
        return n_written

    folder = CacheFolder(tmp_path, write)
    for _ in range(5):
        assert store(folder, os.urandom(100), 250)
    assert max(sizes) == 200


def test_an_entry_above_the_limit_is_not_stored_and_evicts_nothing(folder):
    assert store(folder, b"small", 10)
    assert not store(folder, b"much too large", 10)
    assert load(folder, b"small")


def test_a_limit_of_zero_stores_nothing(folder):
    assert not store(folder, b"x", 0)
    assert names(folder) == []


def test_prune_counts_what_lies_there_not_what_names_say(folder):
    file_of(folder.path, b"weights").write_bytes(bytes(1000))
    store(folder, b"other")
    age(folder, b"other", 5)
    assert [entry.stored_nbytes for entry in folder.prune(999)] == [5, 1000]


# Writers that fail or die


def test_a_full_disk_leaves_no_partial_entry(tmp_path):
    def write(file: int, data: memoryview) -> int:
        if os.fstat(file).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(file, data[:100])

    folder = CacheFolder(tmp_path, write)
    with pytest.raises(OSError, match="No space left"):
        store(folder, os.urandom(1000))
    assert names(folder) == []


def test_a_writer_that_dies_leaves_a_temporary_that_is_swept(folder):
    program = """
import os, sys
from pathlib import Path
import xxhash
from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_backend.worker.cache_folder import CacheFolder
from rpc_backend.worker.content import Content
from rpc_backend.worker.tasks import Place

data = bytes(3 << 20)
buffer = HostBuffer(NullDevice(), len(data))
def write(file, data):
    os.write(file, data)
    os._exit(9)
CacheFolder(Path(sys.argv[1]), write).store(
    Content(xxhash.xxh3_128(data).digest(), len(data)), Place(buffer, 0, len(data)), limit_nbytes=None,
    is_stopped=lambda: False)
"""
    done = subprocess.run([sys.executable, "-c", program, str(folder.path)], timeout=60, check=False)
    assert done.returncode == 9
    assert len(names(folder)) == 1
    assert folder.entries() == []

    assert folder.sweep() == 1
    assert names(folder) == []


def test_the_temporary_of_a_living_writer_is_not_swept(tmp_path):
    other, swept = CacheFolder(tmp_path), []

    def write(file: int, data: memoryview) -> int:
        swept.append(other.sweep())
        return os.write(file, data)

    assert store(CacheFolder(tmp_path, write), b"weights")
    assert swept == [0]


def test_two_writers_of_one_entry_leave_one(tmp_path):
    other = CacheFolder(tmp_path)

    def write(file: int, data: memoryview) -> int:
        assert store(other, b"weights")
        return os.write(file, data)

    assert store(CacheFolder(tmp_path, write), b"weights")
    assert names(other) == [file_of(tmp_path, b"weights").name]
    assert load(other, b"weights")


def test_an_entry_that_another_worker_removes_while_it_is_looked_at(folder):
    store(folder, b"weights")
    entry = folder.entries()[0]
    folder.remove(entry.content)
    folder.remove(entry.content)
    assert folder.is_sound(entry)
    assert not load(folder, b"weights")


def test_probing_leaves_nothing(folder):
    folder.probe()
    assert names(folder) == []
    folder.path.rmdir()
    with pytest.raises(FileNotFoundError):
        folder.probe()
