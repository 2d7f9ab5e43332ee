"""What a worker makes of its folder: one warning when it fails, and never an error."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import xxhash

from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_backend.worker.cache_folder import CacheFolder
from rpc_backend.worker.content import Content
from rpc_backend.worker.tasks import Place
from rpc_backend.worker.weight_cache import WeightCache


class Disk:
    """A disk that is full when it should be, and a clock."""

    def __init__(self) -> None:
        self.is_full = False
        self.now_s = 1000.0
        self.n_writes = 0

    def write(self, file: int, data: memoryview) -> int:
        self.n_writes += 1
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(file, data)


class Later:
    """Runs what it was given when it is told to."""

    def __init__(self) -> None:
        self.bodies = []

    def __call__(self, name, body) -> None:
        self.bodies.append(body)

    def run(self) -> None:
        while self.bodies:
            self.bodies.pop(0)()


def run_now(name, body) -> None:
    body()


def content_of(data: bytes) -> Content:
    return Content(xxhash.xxh3_128(data).digest(), len(data))


def place_of(data: bytes) -> Place:
    buffer = HostBuffer(NullDevice(), len(data))
    buffer.write(0, memoryview(data))
    return Place(buffer, 0, len(data))


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def make(tmp_path: Path, disk: Disk):
    def make(limit_nbytes: int | None = None, spawn=run_now, path: Path = tmp_path / "cache") -> WeightCache:
        stored: list[int] = []
        cache = WeightCache(
            CacheFolder(path, disk.write), limit_nbytes, spawn, on_stored=stored.append, clock=lambda: disk.now_s
        )
        cache.stored = stored
        return cache

    return make


def has(cache: WeightCache, data: bytes) -> bool:
    return cache.load(content_of(data), place_of(bytes(len(data))))


def test_what_is_stored_is_found_and_counted(make):
    cache = make()
    assert cache.open()
    cache.store(content_of(b"weights"), place_of(b"weights"))
    cache.store(content_of(b"weights"), place_of(b"weights"))
    assert has(cache, b"weights")
    assert not has(cache, b"others")
    assert cache.stored == [7]


def test_opening_sweeps_and_prunes(make, tmp_path):
    first = make()
    assert first.open()
    for data in (b"one", b"two"):
        first.store(content_of(data), place_of(data))
    temporary = tmp_path / "cache" / ("0" * 32 + "-7." + "0" * 16 + ".tmp")
    temporary.touch()

    assert make(limit_nbytes=4).open()
    assert not temporary.exists()
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_full_disk_is_one_warning_and_a_pause(make, disk, caplog):
    cache = make()
    assert cache.open()
    disk.is_full = True
    for number in range(5):
        cache.store(content_of(b"%d" % number), place_of(b"%d" % number))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left" in caplog.text
    assert disk.n_writes == 1, "nothing is tried for a while"

    disk.now_s += 61
    cache.store(content_of(b"more"), place_of(b"more"))
    assert len(caplog.records) == 1, "the same outage is not reported again"

    disk.is_full = False
    disk.now_s += 61
    cache.store(content_of(b"more"), place_of(b"more"))
    assert has(cache, b"more")
    assert cache.stored == [4]


def test_what_is_there_is_found_while_the_disk_is_full(make, disk):
    cache = make()
    assert cache.open()
    cache.store(content_of(b"weights"), place_of(b"weights"))
    disk.is_full = True
    cache.store(content_of(b"more"), place_of(b"more"))
    assert has(cache, b"weights")


@pytest.mark.parametrize("path", [Path("/proc/none/cache"), Path(__file__) / "cache"])
def test_a_folder_that_cannot_be_made_is_one_warning(make, caplog, path):
    assert not make(path=path).open()
    assert len(caplog.records) == 1
    assert "weights are not cached" in caplog.text


def test_a_folder_that_cannot_be_written_still_gives_what_it_has(make, caplog, monkeypatch):
    cache = make()
    assert cache.open()
    cache.store(content_of(b"weights"), place_of(b"weights"))

    def refuse(folder: CacheFolder) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(CacheFolder, "probe", refuse)
    second = make()
    assert second.open()
    assert has(second, b"weights")
    second.store(content_of(b"more"), place_of(b"more"))
    assert not has(second, b"more")
    assert len(caplog.records) == 1
    assert "Permission denied" in caplog.text


def test_an_empty_folder_that_cannot_be_written_is_of_no_use(make, monkeypatch):
    def refuse(folder: CacheFolder) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(CacheFolder, "probe", refuse)
    assert not make().open()


def test_a_limit_of_zero_is_no_cache_and_empties_the_folder(make, tmp_path):
    cache = make()
    assert cache.open()
    cache.store(content_of(b"weights"), place_of(b"weights"))
    assert not make(limit_nbytes=0).open()
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_that_vanishes_is_one_warning(make, tmp_path, caplog):
    cache = make()
    assert cache.open()
    (tmp_path / "cache").rmdir()
    for number in range(3):
        assert not has(cache, b"weights")
        cache.store(content_of(b"%d" % number), place_of(b"%d" % number))
    assert len(caplog.records) == 1


def test_a_folder_that_cannot_be_read_is_one_warning(make, caplog, monkeypatch):
    cache = make()
    assert cache.open()
    cache.store(content_of(b"weights"), place_of(b"weights"))

    def fail(file, buffers, offset):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", fail)
        assert not has(cache, b"weights")
        assert not has(cache, b"weights")
    assert len(caplog.records) == 1
    assert has(cache, b"weights")


def test_what_changed_or_is_gone_before_its_turn_is_not_stored(make, tmp_path, caplog):
    later = Later()
    cache = make(spawn=later)
    assert cache.open()
    changed, freed, kept = place_of(b"changed"), place_of(b"freed"), place_of(b"kept")
    for place, data in ((changed, b"changed"), (freed, b"freed"), (kept, b"kept")):
        cache.store(content_of(data), place)
    changed.buffer.fill(0, 1, 0)
    freed.buffer.close()
    later.run()
    assert cache.stored == [4]
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert caplog.records == []


def test_a_buffer_is_closed_once_all_of_it_is_stored(make):
    later, closed = Later(), []
    cache = make(spawn=later)
    assert cache.open()
    first, second = place_of(b"weights"), place_of(b"more")

    cache.when_stored(first.buffer, lambda: closed.append("nothing of it waits"))
    assert closed == ["nothing of it waits"]
    cache.store(content_of(b"weights"), first)
    cache.store(content_of(b"more"), second)
    for place in (second, first):
        cache.when_stored(place.buffer, lambda place=place: closed.append(place))
    assert len(closed) == 1
    later.run()
    assert closed[1:] == [first, second]
    assert has(cache, b"weights")
    assert has(cache, b"more")


def test_a_buffer_whose_memory_is_needed_is_closed_at_once(make, caplog):
    later, closed = Later(), []
    cache = make(spawn=later)
    assert cache.open()
    assert not cache.give_up()
    freed, used = place_of(b"freed"), place_of(b"used")
    cache.store(content_of(b"freed"), freed)
    cache.store(content_of(b"used"), used)
    cache.when_stored(freed.buffer, lambda: closed.append(freed))

    assert cache.give_up()
    assert closed == [freed]
    assert "memory is needed" in caplog.text
    later.run()
    assert not has(cache, b"freed")
    assert has(cache, b"used")
    assert closed == [freed]


def test_a_buffer_that_cannot_be_closed_stops_nothing(make, caplog):
    later = Later()
    cache = make(spawn=later)
    assert cache.open()
    place = place_of(b"weights")

    def fail() -> None:
        raise RuntimeError("lost")

    cache.store(content_of(b"weights"), place)
    cache.when_stored(place.buffer, fail)
    cache.store(content_of(b"more"), place_of(b"more"))
    later.run()
    assert "closing a buffer failed" in caplog.text
    assert has(cache, b"more")


def test_the_end_closes_what_still_waits(make):
    later, closed = Later(), []
    cache = make(spawn=later)
    assert cache.open()
    place = place_of(b"weights")
    cache.store(content_of(b"weights"), place)
    cache.when_stored(place.buffer, lambda: closed.append(place))
    cache.close(0.01)
    assert closed == [place]


def test_nothing_is_stored_after_the_end(make):
    later = Later()
    cache = make(spawn=later)
    assert cache.open()
    cache.store(content_of(b"weights"), place_of(b"weights"))
    cache.close(0.01)
    later.run()
    cache.store(content_of(b"more"), place_of(b"more"))
    assert later.bodies == []
    assert not has(cache, b"weights")


def test_the_queue_is_bounded(make, monkeypatch):
    monkeypatch.setattr("rpc_backend.worker.weight_cache._MAX_JOBS", 3)
    later = Later()
    cache = make(spawn=later)
    assert cache.open()
    for number in range(10):
        cache.store(content_of(b"%d" % number), place_of(b"%d" % number))
    later.run()
    assert cache.stored == [1, 1, 1]
