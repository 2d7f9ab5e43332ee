"""Tensors that one run hands over to the next, past the host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rpc_backend.errors import ComputeError, GraphError, RpcBackendError, WorkerLostError
from rpc_backend.graph import Graph, build, element_type
from rpc_backend.scheduler import Execution, Handover, Run, Scheduler

F32 = element_type("F32")
Array = npt.NDArray[np.float32]
Devices = Callable[..., list[Any]]
X = np.arange(8, dtype=np.float32).reshape(2, 4)


class Loop:
    """`out` = `x` through a matrix on each device; `fed` = half of that, which is the next run's `x`."""

    def __init__(self, devices: Sequence[Any]) -> None:
        random = np.random.default_rng(3)
        self.values = [random.standard_normal((4, 4)).astype(np.float32) for _ in devices]
        self.x = build.leaf(F32, [4, 2], "x")
        hidden = self.x
        for device, values in zip(devices, self.values, strict=True):
            hidden = build.mul_mat(device.put("w", values), hidden)
        self.out, self.fed = hidden, build.scale(hidden, 0.5)

    def prepare(self, scheduler: Scheduler, *, takes: bool) -> Execution:
        handover = Handover({self.fed: 0}, (self.x,) if takes else ())
        return scheduler.prepare(Graph.of(self.out, self.fed), outputs=[self.out], handover=handover)

    def expected(self, count: int) -> list[Array]:
        found, x = [], X
        for _ in range(count):
            for values in self.values:
                x = x @ values.T
            found.append(x)
            x = x / 2
        return found


def started(loop: Loop, first: Execution, following: Execution, count: int) -> list[Run]:
    runs = [first.start({loop.x: X})]
    while len(runs) < count:
        runs.append(following.start({}, {loop.x: runs[-1].given[loop.fed]}))
    return runs


@pytest.mark.parametrize("n_devices", [1, 2, 3])
def test_a_run_takes_what_the_one_before_gives_though_both_are_under_way(peers: Devices, n_devices: int) -> None:
    devices = peers(n_devices)
    loop, gate = Loop(devices), threading.Event()
    devices[-1].before_run = lambda _: gate.wait(20)
    with Scheduler(devices) as scheduler:
        runs = started(loop, loop.prepare(scheduler, takes=False), loop.prepare(scheduler, takes=True), 4)
        assert not any(run.is_done for run in runs)
        gate.set()
        for run, expected in zip(runs, loop.expected(4), strict=True):
            run.wait(20)
            np.testing.assert_allclose(run.output(loop.out)[0, 0], expected, rtol=1e-5)
        with pytest.raises(GraphError, match="no output of this graph"):
            runs[0].output(loop.fed)
        assert devices[0].mail.n_sent >= 4 * n_devices - 1
        runs[-1].given[loop.fed].discard()
        runs[-1].given[loop.fed].discard()
    assert devices[0].mail.buried == [runs[-1].given[loop.fed].ticket]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_run_that_takes_from_a_failed_one_fails_for_that_reason(peers: Devices, failing: int) -> None:
    devices = peers(2)
    loop, gate = Loop(devices), threading.Event()
    devices[0].before_run = lambda _: gate.wait(20)
    devices[failing].fail = ComputeError("out of paper")
    with Scheduler(devices) as scheduler:
        first, following = loop.prepare(scheduler, takes=False), loop.prepare(scheduler, takes=True)
        runs = started(loop, first, following, 3)
        gate.set()
        with pytest.raises(RpcBackendError, match="out of paper"):
            runs[0].wait(20)
        for run in runs[1:]:
            with pytest.raises(WorkerLostError, match="out of paper"):
                run.wait(20)
        late = following.start({}, {loop.x: runs[2].given[loop.fed]})
        with pytest.raises(WorkerLostError, match="out of paper"):
            late.wait(20)
        again = started(loop, first, following, 2)
        again[1].wait(20)
        np.testing.assert_allclose(again[1].output(loop.out)[0, 0], loop.expected(2)[1], rtol=1e-5)


def test_what_is_taken_must_be_what_was_given(peers: Devices) -> None:
    devices = peers(2)
    loop = Loop(devices)
    narrow = build.leaf(F32, [4, 1], "narrow")
    with Scheduler(devices) as scheduler:
        first, following = loop.prepare(scheduler, takes=False), loop.prepare(scheduler, takes=True)
        elsewhere = scheduler.prepare(
            Graph.of(loop.out, loop.fed), outputs=[loop.out], handover=Handover({loop.fed: 1}, ())
        )
        smaller = scheduler.prepare(
            Graph.of(out := build.mul_mat(devices[0].put("w", loop.values[0]), narrow)),
            outputs=[out],
            handover=Handover({}, (narrow,)),
        )
        run = first.start({loop.x: X})
        given = run.given[loop.fed]
        for refused, says in [
            (lambda: following.start({}), "takes <leaf x .* of an earlier one, not none"),
            (lambda: following.start({loop.x: X}, {loop.x: given}), "leaf x .*: no input of this graph"),
            (lambda: first.start({loop.x: X}, {loop.x: given}), "takes none of an earlier one, not <leaf x"),
            (lambda: smaller.start({}, {narrow: given}), "does not fit <leaf narrow"),
            (lambda: following.start({}, {loop.x: elsewhere.start({loop.x: X}).given[loop.fed]}), "another device"),
        ]:
            with pytest.raises(GraphError, match=says):
                refused()
        following.start({}, {loop.x: given}).wait(20)
        with pytest.raises(GraphError, match="taken"):
            following.start({}, {loop.x: given})


def test_devices_that_cannot_send_hand_nothing_over(checked: Devices, peers: Devices) -> None:
    for devices, synchronous in [(checked(2), False), (peers(2), True), ([*checked(1), *peers(1)], False)]:
        loop = Loop(devices)
        with Scheduler(devices, synchronous=synchronous) as scheduler:
            assert not scheduler.can_hand_over(1, 0)
            execution = loop.prepare(scheduler, takes=False)
            assert not execution.hands_over
            with pytest.raises(GraphError, match="cannot hand over"):
                execution.start({loop.x: X})
    with Scheduler(peers(2)) as scheduler:
        assert scheduler.can_hand_over(1, 0)


def test_an_input_that_two_devices_read_cannot_be_taken(peers: Devices) -> None:
    devices = peers(2)
    x = build.leaf(F32, [4, 2], "x")
    weights = [device.put("w", np.eye(4, dtype=np.float32)) for device in devices]
    out = build.add(build.mul_mat(weights[1], build.mul_mat(weights[0], x)), build.mul_mat(weights[1], x))
    with Scheduler(devices) as scheduler:
        assert not scheduler.prepare(Graph.of(out), outputs=[out], handover=Handover({}, (x,))).hands_over
