"""Leaves packed into buffers."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from rpc_backend.errors import DeviceError, OutOfMemoryError
from rpc_backend.graph import build, element_type
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.host.placement import OnProgress, Upload, map_leaf, place_leaves, want_soon
from rpc_backend.interfaces import BufferUsage
from rpc_backend.registry import load_registry

F32 = element_type("F32")


@pytest.fixture
def device():
    return load_registry().create_devices("reference", DeviceOptions())[0]


def upload(weights, on_progress: OnProgress) -> int:
    with Upload(weights, on_progress) as under_way:
        return under_way.wait()


def _leaves(*sizes):
    return [build.leaf(F32, (size,), f"leaf-{size}") for size in sizes]


def test_leaves_share_a_buffer_without_overlap(device):
    leaves = _leaves(1, 33, 16)
    (buffer,) = place_leaves(device, leaves, BufferUsage.WEIGHTS)
    spans = sorted((leaf.offset, leaf.offset + leaf.nbytes) for leaf in leaves)
    assert all(leaf.offset % device.info.alignment == 0 for leaf in leaves)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert spans[-1][1] <= buffer.nbytes


def test_a_small_largest_buffer_makes_more_buffers(device):
    device.info = replace(device.info, max_buffer_nbytes=256)
    buffers = place_leaves(device, _leaves(32, 32, 40), BufferUsage.ANY)
    assert [buffer.nbytes for buffer in buffers] == [256, 192]
    with pytest.raises(OutOfMemoryError, match="leaf-100"):
        place_leaves(device, _leaves(100), BufferUsage.ANY)


def test_no_leaves_need_no_buffer(device):
    assert place_leaves(device, [], BufferUsage.ANY) == []


def test_an_upload_writes_every_leaf_and_counts(device):
    leaves = _leaves(3, 5)
    data = [np.arange(leaf.nbytes, dtype=np.uint8) for leaf in leaves]
    place_leaves(device, leaves, BufferUsage.WEIGHTS)
    seen = []
    assert upload({device: list(zip(leaves, data, strict=True))}, seen.append) == 32
    assert [progress.done_nbytes for progress in seen] == [12, 32]
    for leaf, expected in zip(leaves, data, strict=True):
        out = bytearray(leaf.nbytes)
        leaf.buffer.read_into(leaf.offset, memoryview(out))
        assert bytes(out) == expected.tobytes()


def test_a_mapped_leaf_is_read_where_it_lies_and_never_written(device):
    (leaf,) = _leaves(4)
    data = np.zeros(16, np.uint8)
    data.flags.writeable = False
    map_leaf(device, leaf, data)
    assert leaf.buffer.address == data.ctypes.data
    with pytest.raises(DeviceError, match="read-only"):
        leaf.buffer.write(0, memoryview(b"1234"))


def test_bytes_of_a_mapped_file_can_be_wanted_soon(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(10_000))
    mapped = np.memmap(path, np.uint8, "r")
    assert want_soon(np.asarray(mapped)[5000:9000])
    assert not want_soon(np.zeros(10, np.uint8))


def test_devices_load_side_by_side(device):
    other = load_registry().create_devices("reference", DeviceOptions())[0]
    weights, seen = {}, []
    for each in (device, other):
        leaves = _leaves(4, 4, 4)
        place_leaves(each, leaves, BufferUsage.WEIGHTS)
        weights[each] = [(leaf, np.full(16, 7, np.uint8)) for leaf in leaves]
    assert upload(weights, seen.append) == 96
    assert [progress.done_nbytes for progress in seen] == [16, 32, 48, 64, 80, 96]
    assert {progress.total_nbytes for progress in seen} == {96}


def test_an_upload_that_is_left_with_an_error_is_given_up(device):
    leaves = _leaves(4, 4, 4, 4)
    place_leaves(device, leaves, BufferUsage.WEIGHTS)
    left, seen = threading.Event(), []

    def stop_at_the_first(progress):
        seen.append(progress)
        assert left.wait(10)

    def leave_with_an_error():
        with Upload({device: [(leaf, np.zeros(16, np.uint8)) for leaf in leaves]}, stop_at_the_first):
            threading.Timer(0.05, left.set).start()
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 (it is raised here)
        leave_with_an_error()
    assert len(seen) < len(leaves)


def test_the_error_of_one_device_ends_the_upload_to_all(device):
    (leaf,) = _leaves(4)
    place_leaves(device, [leaf], BufferUsage.WEIGHTS)
    leaf.buffer.close()
    with pytest.raises(DeviceError, match="closed"):
        upload({device: [(leaf, np.zeros(16, np.uint8))]}, lambda _: None)
