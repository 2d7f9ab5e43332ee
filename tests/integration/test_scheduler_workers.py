"""Runs of the scheduler over real workers: overlap, every way of copying, failures and deaths in mid run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rpc_backend.client import connect
from rpc_backend.errors import ComputeError, WorkerLostError
from rpc_backend.graph import Graph, Tensor, build, element_type
from rpc_backend.hookspecs import DeviceOptions
from rpc_backend.interfaces import BufferUsage, Device
from rpc_backend.registry import load_registry
from rpc_backend.scheduler import Execution, Run, Scheduler
from rpc_backend.settings import Settings
from rpc_backend.testing.workers import WorkerProcess

F32 = element_type("F32")
SETTINGS: dict[str, Any] = {"heartbeat_timeout_ms": 1000, "connect_timeout_ms": 20_000, "command_timeout_ms": 20_000}
DELAY_S = 0.05

Array = npt.NDArray[Any]
Opened = Callable[..., list[Device]]


@pytest.fixture
def workers() -> Iterator[Callable[..., list[WorkerProcess]]]:
    """A function that starts workers, each with one device; all end with the test."""
    with ExitStack() as stack:
        yield lambda *devices: [stack.enter_context(WorkerProcess(device)) for device in devices]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """A function that gives a device of this process and those of some workers."""
    with ExitStack() as stack:

        def begin(workers: Sequence[WorkerProcess], **switches: Any) -> list[Device]:
            devices: list[Device] = [*load_registry().create_devices("reference", DeviceOptions())]
            for worker in workers:
                connection = stack.enter_context(connect(worker.endpoint, Settings(**{**SETTINGS, **switches})))
                devices.extend(connection.devices())
            return devices

        yield begin


class Stages:
    """A recurrence over devices: each mixes what comes in with what it kept of the runs before."""

    def __init__(self, devices: Sequence[Device], order: Sequence[int]) -> None:
        random = np.random.default_rng(5)
        self.x = build.leaf(F32, [64, 2], "x")
        kept: list[Tensor] = []
        hidden = self.x
        for index in order:
            weight = put(devices[index], random.standard_normal((64, 64)) / 8)
            state = put(devices[index], np.zeros((2, 64)))
            hidden = build.add(build.mul_mat(weight, hidden), build.scale(state, 0.5))
            kept.append(build.cpy(hidden, state))
        self.out = hidden
        self.graph = Graph.of(*kept, hidden)

    def start(self, execution: Execution, number: int) -> Run:
        return execution.start({self.x: np.full((2, 64), number + 1, np.float32)})


def put(device: Device, values: Array) -> Tensor:
    tensor = build.leaf(F32, values.shape[::-1])
    tensor.buffer = device.alloc_buffer(tensor.nbytes, BufferUsage.WEIGHTS)
    tensor.buffer.write(0, memoryview(values.astype(np.float32).tobytes()))
    return tensor


def results(devices: Sequence[Device], order: Sequence[int], count: int, *, synchronous: bool = False) -> list[Array]:
    stages = Stages(devices, order)
    with Scheduler(devices, synchronous=synchronous) as scheduler:
        execution = scheduler.prepare(stages.graph, outputs=[stages.out])
        runs = [stages.start(execution, number) for number in range(count)]
        for run in runs:
            run.wait(20)
        return [run.output(stages.out) for run in runs]


ARMS: dict[str, dict[str, Any]] = {
    "direct": {},
    "hub": {"p2p": False},
    "copies": {"proto_minor": 3},
    "copies_hub": {"proto_minor": 3, "p2p": False},
    "older": {"proto_minor": 2},
    "oldest": {"proto_minor": 1},
    "single_reads": {"no_batched_get": True},
    "synchronous": {"no_async_copy": True},
}


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (1, 2, 1)])
def test_every_arm_gives_the_same(workers: Any, opened: Opened, order: tuple[int, ...]) -> None:
    both = workers("reference", "reference")
    expected = results(opened([]) * 3, [0] * len(order), 5, synchronous=True)
    for name, switches in ARMS.items():
        synchronous = switches.get("no_async_copy", False)
        found = results(opened(both, **switches), order, 5, synchronous=synchronous)
        np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize("switches", [{}, {"p2p": False}, {"proto_minor": 1}])
def test_workers_and_this_process_work_at_the_same_time(workers: Any, opened: Opened, switches: dict[str, Any]) -> None:
    slow = f"reference:delay_ms={int(DELAY_S * 1000)}"
    devices = opened(workers(slow, slow), **switches)
    stages = Stages(devices, (0, 1, 2))
    with Scheduler(devices) as scheduler:
        execution = scheduler.prepare(stages.graph, outputs=[stages.out])
        stages.start(execution, 0).wait(20)
        started_s = time.monotonic()
        runs = [stages.start(execution, number) for number in range(8)]
        wait([run.future for run in runs], 20)
        wall_s = time.monotonic() - started_s
        for run in runs:
            run.wait(0)
    assert 9 * DELAY_S <= wall_s < 14 * DELAY_S  # 16 visits that dawdle


@pytest.mark.parametrize("switches", [{}, {"p2p": False}, {"proto_minor": 3}])
@pytest.mark.parametrize("broken", [0, 1])
def test_a_run_that_fails_on_a_worker_fails_alone(
    workers: Any, opened: Opened, switches: dict[str, Any], broken: int
) -> None:
    kinds = ["reference", "reference"]
    kinds[broken] += ":fail_on=3"
    devices = opened(workers(*kinds), **switches)
    stages = Stages(devices, (1, 2))
    with Scheduler(devices) as scheduler:
        execution = scheduler.prepare(stages.graph, outputs=[stages.out])
        runs = [stages.start(execution, number) for number in range(6)]
        assert not wait([run.future for run in runs], 20).not_done
        errors = [run.future.exception() for run in runs]
        assert [error is not None for error in errors] == [False, False, True, False, False, False]
        assert isinstance(errors[2], ComputeError)
        assert "graph 3 fails as asked" in str(errors[2])


@pytest.mark.parametrize("switches", [{}, {"p2p": False}, {"proto_minor": 3}])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_worker_that_dies_fails_the_runs_and_hangs_nobody(
    workers: Any, opened: Opened, switches: dict[str, Any], lost: int
) -> None:
    both = workers("reference:delay_ms=20", "reference:delay_ms=20")
    devices = opened(both, **switches)
    stages = Stages(devices, (1, 2))
    with Scheduler(devices) as scheduler:
        execution = scheduler.prepare(stages.graph, outputs=[stages.out])
        stages.start(execution, 0).wait(20)
        runs = [stages.start(execution, number) for number in range(20)]
        runs[0].wait(20)
        both[lost].kill()
        assert not wait([run.future for run in runs], 10).not_done
        with pytest.raises(WorkerLostError):
            runs[-1].wait(0)
        with pytest.raises(WorkerLostError):
            stages.start(execution, 0).wait(5)
