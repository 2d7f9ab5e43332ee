"""Chunks of announced uploads, in any order."""

from __future__ import annotations

import random

import pytest

from rpc_backend.interfaces import HostBuffer
from rpc_backend.testing.devices import NullDevice
from rpc_backend.worker.content import Content
from rpc_backend.worker.tasks import Place
from rpc_backend.worker.uploads import Uploads


def content(number: int, nbytes: int) -> Content:
    return Content(bytes([number] * 16), nbytes)


@pytest.fixture
def buffer() -> HostBuffer:
    return HostBuffer(NullDevice(), 1000)


def written(uploads: Uploads, buffer: HostBuffer, start: int, nbytes: int) -> list[int]:
    """The numbers of the uploads that are complete with a write."""
    done = list(uploads.written(Place(buffer, start, nbytes)))
    assert all(place.nbytes == found.nbytes for found, place in done)
    return [found.digest[0] for found, _ in done]


def test_an_upload_is_complete_with_its_last_chunk(buffer):
    uploads = Uploads()
    uploads.announce(content(1, 100), Place(buffer, 50, 100))
    assert written(uploads, buffer, 50, 60) == []
    assert list(uploads.written(Place(buffer, 110, 40))) == [(content(1, 100), Place(buffer, 50, 100))]
    assert len(uploads) == 0
    assert written(uploads, buffer, 110, 40) == []


def test_several_are_announced_ahead_and_come_in_any_order(buffer):
    uploads = Uploads()
    for number in range(10):
        uploads.announce(content(number, 100), Place(buffer, number * 100, 100))
    chunks = [(start, 25) for start in range(0, 1000, 25)]
    random.Random(3).shuffle(chunks)
    done = [number for start, nbytes in chunks for number in written(uploads, buffer, start, nbytes)]
    assert sorted(done) == list(range(10))


def test_one_write_may_complete_several_and_reach_beyond(buffer):
    uploads = Uploads()
    uploads.announce(content(2, 50), Place(buffer, 150, 50))
    uploads.announce(content(1, 50), Place(buffer, 100, 50))
    uploads.announce(content(3, 50), Place(buffer, 200, 50))
    assert sorted(written(uploads, buffer, 90, 120)) == [1, 2]
    assert len(uploads) == 1
    assert written(uploads, buffer, 210, 40) == [3]


def test_neighbours_and_other_buffers_do_not_count(buffer):
    uploads = Uploads()
    uploads.announce(content(1, 10), Place(buffer, 100, 10))
    assert written(uploads, buffer, 0, 100) == []
    assert written(uploads, buffer, 110, 100) == []
    assert written(uploads, HostBuffer(NullDevice(), 1000), 100, 10) == []
    assert written(uploads, buffer, 100, 10) == [1]


def test_a_new_announcement_replaces_what_it_overlaps(buffer):
    uploads = Uploads()
    for number, start in enumerate((0, 10, 20, 30)):
        uploads.announce(content(number, 10), Place(buffer, start, 10))
    uploads.announce(content(9, 15), Place(buffer, 8, 15))
    assert len(uploads) == 2
    assert sorted(written(uploads, buffer, 0, 100)) == [3, 9]
    uploads.announce(content(1, 10), Place(buffer, 0, 10))
    uploads.announce(content(2, 10), Place(buffer, 0, 10))
    assert written(uploads, buffer, 0, 10) == [2]


def test_freed_buffers_and_closed_sessions_are_forgotten(buffer):
    uploads, other = Uploads(), HostBuffer(NullDevice(), 1000)
    uploads.announce(content(1, 10), Place(buffer, 0, 10))
    uploads.announce(content(2, 10), Place(other, 0, 10))
    uploads.drop_buffer(buffer)
    assert len(uploads) == 1
    assert written(uploads, buffer, 0, 10) == []
    uploads.clear()
    assert len(uploads) == 0
    assert written(uploads, other, 0, 10) == []


def test_announcements_without_uploads_are_bounded(buffer, monkeypatch):
    monkeypatch.setattr("rpc_backend.worker.uploads._MAX_ANNOUNCED", 3)
    uploads = Uploads()
    for start in range(10):
        uploads.announce(content(1, 1), Place(buffer, start, 1))
    assert len(uploads) == 3


def test_nothing_is_never_announced(buffer):
    uploads = Uploads()
    uploads.announce(content(1, 0), Place(buffer, 0, 0))
    assert len(uploads) == 0
