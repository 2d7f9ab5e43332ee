"""Bytes between files and buffers: checked on every way, and never left behind unchecked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import xxhash

from rpc_backend.errors import GraphError
from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_backend.worker.content import Content, check_digest, digest_of, read_content, write_content
from rpc_backend.worker.tasks import Place

MIB = 1 << 20
SIZES = [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB + 5]


def content_of(data: bytes) -> Content:
    return Content(xxhash.xxh3_128(data).digest(), len(data))


def place_of(nbytes: int, data: bytes = b"") -> Place:
    """A place in the middle of a buffer that is otherwise full of 7."""
    buffer = HostBuffer(NullDevice(), nbytes + 20)
    buffer.fill(0, nbytes + 20, 7)
    buffer.write(10, memoryview(data))
    return Place(buffer, 10, nbytes)


def bytes_at(place: Place, margin: int = 0) -> bytes:
    out = bytearray(place.nbytes + 2 * margin)
    place.buffer.read_into(place.offset - margin, memoryview(out))
    return bytes(out)


@pytest.fixture
def opened(tmp_path: Path):
    files: list[int] = []

    def open_with(data: bytes) -> int:
        path = tmp_path / f"{len(files)}"
        path.write_bytes(data)
        files.append(os.open(path, os.O_RDWR))
        return files[-1]

    yield open_with
    for file in files:
        os.close(file)


@pytest.mark.parametrize("nbytes", SIZES)
def test_content_comes_to_its_place_and_nowhere_else(opened, nbytes):
    data = os.urandom(nbytes)
    place = place_of(nbytes)

    assert read_content(opened(b"abc" + data + b"def"), 3, content_of(data), place)
    assert bytes_at(place, margin=10) == bytes([7] * 10) + data + bytes([7] * 10)


@pytest.mark.parametrize("at", [0, MIB, 2 * MIB - 1])
def test_a_flipped_bit_is_seen_and_nothing_stays(opened, at):
    data = bytearray(os.urandom(2 * MIB))
    content = content_of(data)
    data[at] ^= 1
    place = place_of(len(data))

    assert not read_content(opened(data), 0, content, place)
    assert bytes_at(place, margin=10) == bytes([7] * 10) + bytes(len(data)) + bytes([7] * 10)


def test_a_file_that_ends_early_is_no_content_and_nothing_stays(opened):
    data = os.urandom(2 * MIB)
    place = place_of(len(data))

    assert not read_content(opened(data[:-1]), 0, content_of(data), place)
    assert not any(bytes_at(place))


def test_a_file_that_cannot_be_read_leaves_nothing_behind(opened):
    place = place_of(64)
    file = os.open("/", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="directory"):
            read_content(file, 0, content_of(bytes(64)), place)
    finally:
        os.close(file)
    assert not any(bytes_at(place))


@pytest.mark.parametrize("nbytes", SIZES)
def test_digests_of_files(opened, nbytes):
    data = os.urandom(nbytes)
    assert digest_of(opened(b"x" + data), 1, nbytes) == content_of(data).digest
    assert digest_of(opened(data), 0, nbytes + 1) is None


@pytest.mark.parametrize("nbytes", SIZES)
def test_what_is_written_is_what_was_checked(opened, nbytes):
    data = os.urandom(nbytes)
    file = opened(b"")

    def write_less(file: int, data: memoryview) -> int:
        return os.write(file, data[:300_000])

    place = place_of(nbytes, data)
    assert write_content(file, content_of(data), place, is_stopped=lambda: False, write=write_less)
    assert os.pread(file, nbytes + 1, 0) == data


def test_other_bytes_are_not_the_content(opened):
    data = os.urandom(64)
    assert not write_content(opened(b""), content_of(data), place_of(64), is_stopped=lambda: False)


def test_writing_stops_when_it_should(opened):
    data, file = bytes(3 * MIB), opened(b"")
    answers = iter([False, True])

    assert not write_content(file, content_of(data), place_of(len(data), data), is_stopped=lambda: next(answers))
    assert os.fstat(file).st_size == MIB


@pytest.mark.parametrize("nbytes", [0, 15, 17, 64])
def test_a_digest_of_another_length_is_refused(nbytes):
    with pytest.raises(GraphError, match=f"digest of {nbytes} bytes"):
        check_digest(bytes(nbytes))
