"""The steps of a run: in which order the ways to copy are tried, and what is left after an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rpc_backend.errors import ComputeError, WorkerLostError
from rpc_backend.graph import Graph, Tensor, build, element_type
from rpc_backend.interfaces import SerialStream, Stream
from rpc_backend.scheduler.steps import Compute, Transfer, perform, perform_all
from rpc_backend.scheduler.workspace import Workspace

F32 = element_type("F32")
Devices = Callable[..., list[Any]]
Asked = list[tuple[str, str]]


class Watched(SerialStream):
    """Notes the questions it is asked and says yes to those in `offers`."""

    asked: Asked
    offers: tuple[str, ...] = ()

    def copy_tensor_async(self, source_stream: Stream, source: Tensor, target_stream: Stream, target: Tensor) -> bool:
        self.asked.append((self.device.info.name, "queue"))
        return self._answer("queue", source_stream, source, target)

    def copy_tensor(self, source: Tensor, target: Tensor) -> bool:
        self.asked.append((self.device.info.name, "copy"))
        return self._answer("copy", self, source, target)

    def _answer(self, way: str, stream: Stream, source: Tensor, target: Tensor) -> bool:
        if way in self.offers:
            self.set_tensor(target, stream.fetch_tensor(source).result())
        return way in self.offers


class Other(Watched):
    """A stream of another kind."""


def copied(
    checked: Devices, monkeypatch: pytest.MonkeyPatch, *, other: bool, synchronous: bool, **offers: tuple[str, ...]
) -> Asked:
    devices = checked(2)
    asked: Asked = []
    streams = [(Other if other else Watched)(devices[0]), Watched(devices[1])]
    for stream, name in zip(streams, ("source", "target"), strict=True):
        stream.asked, stream.offers = asked, offers.get(name, ())
    source, target = devices[0].put("a", np.arange(8, dtype=np.float32)), devices[1].put("b", np.zeros(8, np.float32))
    workspace = Workspace(devices, synchronous=synchronous)
    monkeypatch.setattr(workspace, "streams", streams)
    perform(workspace, Transfer(0, source, 1, target))
    np.testing.assert_array_equal(target.buffer.bytes.view(np.float32), np.arange(8))
    return asked


def test_the_target_is_asked_first_then_the_source_then_the_host_does_it(
    checked: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_target, queue_source, copy = ("d1", "queue"), ("d0", "queue"), ("d1", "copy")
    for offers, expected in [
        ({"target": ("queue",)}, [queue_target]),
        ({"source": ("queue",)}, [queue_target, queue_source]),
        ({"target": ("copy",)}, [queue_target, queue_source, copy]),
        ({}, [queue_target, queue_source, copy]),
    ]:
        assert copied(checked, monkeypatch, other=True, synchronous=False, **offers) == expected


def test_a_source_of_the_same_kind_is_not_asked_again(checked: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = copied(checked, monkeypatch, other=False, synchronous=False, source=("queue",))
    assert asked == [("d1", "queue"), ("d1", "copy")]


def test_nobody_is_asked_to_queue_if_it_is_to_be_synchronous(checked: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = copied(checked, monkeypatch, other=True, synchronous=True, source=("queue",), target=("queue",))
    assert asked == [("d1", "copy")]


class Deferred(SerialStream):
    """Raises what went wrong when it is synchronized, as a device that computes later does."""

    error: Exception | None = None

    def synchronize(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


@pytest.mark.parametrize(("error", "is_left"), [(ComputeError("broken"), False), (WorkerLostError("gone"), True)])
def test_an_error_takes_those_it_caused_along(
    checked: Devices, monkeypatch: pytest.MonkeyPatch, error: Exception, is_left: bool
) -> None:
    devices = checked(2)
    workspace = Workspace(devices, synchronous=True)
    streams = [Deferred(device) for device in devices]
    monkeypatch.setattr(workspace, "streams", streams)
    streams[0].error, streams[1].error = error, ComputeError("because of it")
    tensors = [device.put("t", np.zeros(8, np.float32)) for device in devices]
    with pytest.raises(type(error), match=str(error)):
        perform_all(workspace, [Transfer(0, tensors[0], 1, tensors[1])])
    assert (streams[1].error is not None) is is_left


def test_runs_of_a_graph_end_with_the_devices_of_this_process(checked: Devices) -> None:
    devices = checked(2)
    node = build.scale(devices[1].put("t", np.ones(8, np.float32)), 2.0)
    with_memory = devices[1].alloc_buffer(node.nbytes)
    node.buffer = with_memory
    workspace = Workspace(devices)
    perform_all(workspace, [Compute(1, devices[1].compile(Graph([node])))])
    np.testing.assert_array_equal(with_memory.bytes.view(np.float32), np.full(8, 2))
    workspace.close()
