"""Runs that overlap: order, results, failures, and the end of the scheduler while they are under way."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpc_backend.errors import ComputeError, DeadlineError, DeviceError, GraphError, WorkerLostError
from rpc_backend.graph import Graph, Tensor, build, element_type
from rpc_backend.interfaces import QueuedStream
from rpc_backend.scheduler import Execution, Run, Scheduler

F32 = element_type("F32")
Array = npt.NDArray[Any]
Devices = Callable[..., list[Any]]


class Stages:
    """A recurrence over devices: each layer mixes what comes in with what it kept of the runs before."""

    def __init__(self, devices: Sequence[Any], layer_devices: Sequence[int]) -> None:
        random = np.random.default_rng(5)
        self.x = build.leaf(F32, [4, 2], "x")
        kept: list[Tensor] = []
        hidden = self.x
        for index, device in enumerate(layer_devices):
            weight = devices[device].put(f"w{index}", random.standard_normal((4, 4)).astype(np.float32))
            state = devices[device].put(f"state{index}", np.zeros((2, 4), np.float32))
            hidden = build.add(build.mul_mat(weight, hidden), build.scale(state, 0.5))
            kept.append(build.cpy(hidden, state))
        self.out = hidden
        self.graph = Graph.of(*kept, hidden)

    def prepare(self, scheduler: Scheduler) -> Execution:
        return scheduler.prepare(self.graph, outputs=[self.out])

    def start(self, execution: Execution, number: int) -> Run:
        return execution.start({self.x: values(number)})


def values(number: int) -> Array:
    return np.full((2, 4), number, np.float32) + np.arange(4, dtype=np.float32)


def one_by_one(make: Devices, layer_devices: Sequence[int], numbers: Iterable[int]) -> list[Array]:
    devices = make(max(layer_devices) + 1)
    stages = Stages(devices, layer_devices)
    results = []
    with Scheduler(devices, synchronous=True) as scheduler:
        execution = stages.prepare(scheduler)
        for number in numbers:
            execution.set_input(stages.x, values(number))
            execution.run()
            results.append(execution.get_output(stages.out))
    return results


def dawdle(devices: Sequence[Any], delay_s: float) -> None:
    for device in devices:
        device.before_run = lambda _: time.sleep(delay_s)


@contextmanager
def gated(device: Any) -> Iterator[threading.Event]:
    """Hold the graphs of a device up until the event is set, or the block left."""
    gate = threading.Event()
    device.before_run = lambda _: gate.wait(20)
    try:
        yield gate
    finally:
        gate.set()


@settings(max_examples=25, deadline=None)
@given(
    layer_devices=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    kinds=st.sampled_from(["checked", "peers", "mixed"]),
    seed=st.integers(0, 2**16),
)
def test_runs_give_what_they_give_one_after_another(
    checked: Devices, peers: Devices, layer_devices: list[int], kinds: str, seed: int
) -> None:
    makers = {"checked": checked, "peers": peers, "mixed": lambda n: [*checked(1), *peers(n)][:n]}
    devices = makers[kinds](max(layer_devices) + 1)
    stages = Stages(devices, layer_devices)
    chance = random.Random(seed)
    for device in devices:
        device.before_run = lambda _: time.sleep(chance.random() * 0.002)
    with Scheduler(devices) as scheduler:
        execution = stages.prepare(scheduler)
        runs = [stages.start(execution, number) for number in range(6)]
        for run in runs:
            run.wait(20)
        results = [run.output(stages.out) for run in runs]
    np.testing.assert_array_equal(results, one_by_one(checked, layer_devices, range(6)))


@pytest.mark.parametrize("kind", ["checked", "peers", "mixed"])
def test_stages_of_several_runs_work_at_the_same_time(checked: Devices, peers: Devices, kind: str) -> None:
    devices = {"checked": checked(4)[1:], "peers": peers(3), "mixed": [checked(1)[0], *peers(2)]}[kind]
    stages = Stages(devices, (0, 1, 2))
    dawdle(devices, 0.03)
    with Scheduler(devices) as scheduler:
        execution = stages.prepare(scheduler)
        started_s = time.monotonic()
        runs = [stages.start(execution, number) for number in range(6)]
        wait([run.future for run in runs], 20)
        wall_s = time.monotonic() - started_s
    assert all(run.is_done for run in runs)
    assert 8 * 0.03 <= wall_s < 15 * 0.03  # 18 visits


def test_what_goes_straight_does_not_pass_the_host(peers: Devices) -> None:
    devices = peers(3)
    stages = Stages(devices, (0, 1, 2))
    with Scheduler(devices) as scheduler:
        execution = stages.prepare(scheduler)
        for number in range(4):
            stages.start(execution, number).wait(20)
    assert devices[0].mail.n_sent == 8


def test_start_returns_before_anything_is_computed_elsewhere(checked: Devices, peers: Devices) -> None:
    devices = [*checked(1), *peers(2)]
    stages = Stages(devices, (0, 1, 2))
    with Scheduler(devices) as scheduler, gated(devices[1]) as gate:
        execution = stages.prepare(scheduler)
        runs = [stages.start(execution, number) for number in range(50)]
        assert devices[0].n_runs == 50
        assert not any(run.is_done for run in runs)
        with pytest.raises(GraphError, match="the run is not done; wait for it"):
            runs[0].output(stages.out)
        with pytest.raises(DeadlineError, match=r"the run did not finish within 0.01 s \(device p1\)"):
            runs[0].wait(0.01)
        gate.set()
        runs[-1].wait(20)
        results = [run.output(stages.out) for run in runs]
    np.testing.assert_array_equal(results, one_by_one(checked, (0, 1, 2), range(50)))


def test_executions_take_turns_in_the_order_of_their_starts(checked: Devices) -> None:
    """Runs of one graph go over d1, d2, those of the other over d2, d1; both keep their state on both."""
    results = []
    for delay_s in (0.0, 0.003):
        devices = checked(3)
        forth, back = Stages(devices, (1, 2)), Stages(devices, (2, 1))
        dawdle(devices[1:2], delay_s)
        with Scheduler(devices) as scheduler:
            executions = [(stages, stages.prepare(scheduler)) for stages in (forth, back)]
            order = [executions[index % 2] for index in range(10)]
            runs = [stages.start(execution, number) for number, (stages, execution) in enumerate(order)]
            if not delay_s:
                [run.wait(20) for run in runs]
            wait([run.future for run in runs], 20)
            results.append([run.output(stages.out) for run, (stages, _) in zip(runs, order, strict=True)])
    np.testing.assert_array_equal(*results)


def test_the_values_of_inputs_are_copied(checked: Devices) -> None:
    devices = checked(2)
    stages = Stages(devices, (1, 1))
    with Scheduler(devices) as scheduler, gated(devices[1]) as gate:
        execution = stages.prepare(scheduler)
        array = values(0)
        first = execution.start({stages.x: array})
        array[:] = 1e9
        gate.set()
        first.wait(20)
    np.testing.assert_array_equal([first.output(stages.out)], one_by_one(checked, (1, 1), range(1)))


@pytest.mark.parametrize("kind", ["checked", "peers"])
def test_a_failed_run_fails_alone(checked: Devices, peers: Devices, kind: str) -> None:
    devices = checked(3) if kind == "checked" else peers(3)
    stages = Stages(devices, (0, 1, 2))

    def fail_the_third(number: int) -> None:
        if number == 3:
            raise ComputeError("broken")

    devices[1].before_run = fail_the_third
    with Scheduler(devices) as scheduler:
        execution = stages.prepare(scheduler)
        ends: list[int] = []
        runs = [stages.start(execution, number) for number in range(6)]
        for number, run in enumerate(runs):
            run.future.add_done_callback(lambda _, number=number: ends.append(number))
        wait([run.future for run in runs], 20)
        for run in (*runs[:2], *runs[3:]):
            run.wait(0)
            assert np.isfinite(run.output(stages.out)).all()
        for action in (runs[2].wait, lambda: runs[2].output(stages.out)):
            with pytest.raises((ComputeError, WorkerLostError), match=r"broken.*device [dp][12]"):
                action()
    assert sorted(ends) == [0, 1, 2, 3, 4, 5]
    assert [device.n_runs for device in devices] == [6, 6, 5]


def test_who_waits_for_a_tensor_of_a_failed_run_is_told(checked: Devices, peers: Devices) -> None:
    """The last device waits for tensors of two others; one fails before it is even asked, so only the host knows."""
    devices = [*checked(2), *peers(2)]
    x = build.leaf(F32, [4, 2], "x")
    weights = [device.put("w", np.eye(4, dtype=np.float32)) for device in devices]
    left = build.mul_mat(weights[2], build.mul_mat(weights[1], x))
    right = build.mul_mat(weights[0], x)
    out = build.mul_mat(weights[3], build.add(left, left))
    devices[1].fail = ComputeError("broken")
    with Scheduler(devices) as scheduler:
        execution = scheduler.prepare(Graph.of(right, out), outputs=[out])
        [copy] = execution.plan.splits[-1].copies
        assert devices[copy.source_device] is devices[2]
        run = execution.start({x: np.ones((2, 4), np.float32)})
        with pytest.raises(ComputeError, match=r"broken \(device d1\)"):
            run.wait(5)
        started_s = time.monotonic()
    assert time.monotonic() - started_s < 5  # the scheduler's end waited for nobody
    assert devices[2].n_runs == devices[3].n_runs == 0
    assert devices[3].mail.dropped == ["the run failed: broken (device d1)"]


def test_a_device_that_gives_nothing_back_can_report_its_end(peers: Devices) -> None:
    devices = peers(2)
    stages = Stages(devices, (0, 1))
    with Scheduler(devices) as scheduler, gated(devices[0]) as gate:
        execution = stages.prepare(scheduler)
        runs = [stages.start(execution, number) for number in range(3)]
        devices[0].open_streams[0].report(WorkerLostError("it is gone"))
        for run in runs:
            with pytest.raises(WorkerLostError, match=r"it is gone \(device p0\)"):
                run.wait(0)
        assert len(devices[1].mail.dropped) == 3
        gate.set()
        devices[0].open_streams[0].report(WorkerLostError("once more"))
        stages.start(execution, 3).wait(20)


def test_a_run_that_fails_twice_ends_once(checked: Devices) -> None:
    devices = checked(3)
    x = build.leaf(F32, [4, 2], "x")
    weights = [device.put("w", np.eye(4, dtype=np.float32)) for device in devices]
    outs = [build.mul_mat(weight, x) for weight in weights]
    gate = threading.Barrier(2)

    def fail(number: int) -> None:
        gate.wait(20)
        raise ComputeError("broken")

    devices[1].before_run = devices[2].before_run = fail
    with Scheduler(devices) as scheduler:
        execution = scheduler.prepare(Graph.of(*outs), outputs=outs)
        for _ in range(20):
            with pytest.raises(ComputeError, match=r"broken \(device d[12]\)"):
                execution.start({x: np.ones((2, 4), np.float32)}).wait(20)


def test_an_error_that_is_none_of_ours_fails_the_run_too(checked: Devices) -> None:
    devices = checked(2)
    stages = Stages(devices, (0, 1))
    for device in devices:

        def divide(number: int) -> None:
            _ = number / 0

        device.before_run = divide
        with Scheduler(devices) as scheduler:
            execution = stages.prepare(scheduler)
            with pytest.raises(ZeroDivisionError):
                stages.start(execution, 0).wait(20)
        device.before_run = lambda _: None


def test_a_device_that_gives_back_something_else_is_noticed(peers: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = peers(1)
    stages = Stages(devices, (0,))
    with Scheduler(devices) as scheduler:
        execution = stages.prepare(scheduler)
        monkeypatch.setattr(type(devices[0].open_streams[0]), "_visit", lambda *_: [memoryview(b"short")])
        with pytest.raises(DeviceError, match=r"1 results were asked.*1 or of other sizes came \(device p0\)"):
            stages.start(execution, 0).wait(20)


def test_a_plan_that_comes_back_to_a_device_shares_it_with_nobody(checked: Devices) -> None:
    devices = checked(3)
    straight, bent = Stages(devices, (1, 2)), Stages(devices, (1, 2, 1))
    dawdle(devices, 0.005)
    with Scheduler(devices) as scheduler:
        one, other = straight.prepare(scheduler), bent.prepare(scheduler)
        before = [straight.start(one, number) for number in range(3)]
        run = bent.start(other, 0)
        assert all(earlier.is_done for earlier in before)
        assert not run.is_done
        after = straight.start(one, 3)
        assert run.is_done
        after.wait(20)
        np.testing.assert_array_equal([run.output(bent.out)], one_by_one(checked, (1, 2, 1), range(1)))
        results = [earlier.output(straight.out) for earlier in (*before, after)]
    np.testing.assert_array_equal(results, one_by_one(checked, (1, 2), range(4)))


def test_waiting_for_earlier_runs_has_a_deadline(checked: Devices) -> None:
    devices = checked(2)
    stages, bent = Stages(devices, (0, 1)), Stages(devices, (1, 0, 1))
    with Scheduler(devices, timeout_s=0.05) as scheduler, gated(devices[1]) as gate:
        execution, other = stages.prepare(scheduler), bent.prepare(scheduler)
        run = stages.start(execution, 0)
        late = r"runs did not finish within 0.05 s \(device d1\)"
        for action in (lambda: bent.start(other, 0), lambda: scheduler.reserve([10**6, 0]), execution.close):
            with pytest.raises(DeadlineError, match=late):
                action()
        gate.set()
        run.wait(20)


def test_what_needs_a_device_before_its_time_is_done_step_by_step(checked: Devices) -> None:
    devices = checked(2)
    x = build.leaf(F32, [4, 2], "x")
    far = devices[1].put("far", np.full((2, 4), 3, np.float32))
    out = build.mul_mat(devices[0].put("w", np.eye(4, dtype=np.float32)), build.add(x, far))
    turned = build.transpose(out)
    placement = dict.fromkeys(Graph.of(out).nodes, 0)
    with Scheduler(devices) as scheduler:
        execution = scheduler.prepare(Graph.of(turned), placement, outputs=[out, turned])
        assert [split.device for split in execution.plan.splits] == [0]
        assert len(execution.plan.copies) == 1
        run = execution.start({x: values(0)})
        assert run.is_done
        np.testing.assert_array_equal(run.output(out)[0, 0], values(0) + 3)
        with pytest.raises(GraphError, match="make it contiguous"):
            run.output(turned)


@pytest.mark.parametrize("synchronous", [False, True])
def test_steps_and_starts_may_alternate(checked: Devices, synchronous: bool) -> None:
    devices = checked(3)
    stages = Stages(devices, (1, 2))
    results: list[Array] = []
    with Scheduler(devices, synchronous=synchronous) as scheduler:
        execution = stages.prepare(scheduler)
        execution.set_input(stages.x, values(0))
        for number in range(6):
            if number % 3:
                run = stages.start(execution, number)
                assert run.is_done or not synchronous
                with pytest.raises(GraphError, match="last thing that ran was not this"):
                    execution.get_output(stages.out)
                run.wait(20)
                results.append(run.output(stages.out))
            else:
                execution.set_input(stages.x, values(number))
                execution.run()
                results.append(execution.get_output(stages.out))
        execution.run()  # with the inputs that were set last, not those that were started with
        results.append(execution.get_output(stages.out))
    np.testing.assert_array_equal(results, one_by_one(checked, (1, 2), [*range(6), 3]))


def test_a_synchronous_run_fails_in_its_run(checked: Devices) -> None:
    devices = checked(2)
    stages = Stages(devices, (0, 1))
    with Scheduler(devices, synchronous=True) as scheduler:
        execution = stages.prepare(scheduler)
        devices[1].fail = ComputeError("broken")
        run = stages.start(execution, 0)
        with pytest.raises(ComputeError, match=r"broken \(device d1\)"):
            run.wait()
        stages.start(execution, 0).wait()


def test_growth_waits_for_the_runs_and_places_anew(checked: Devices) -> None:
    devices = checked(2)
    stages = Stages(devices, (0, 1))
    dawdle(devices, 0.005)
    with Scheduler(devices) as scheduler:
        execution = stages.prepare(scheduler)
        runs = [stages.start(execution, number) for number in range(2)]
        scheduler.reserve([10**6, 10**6])
        assert all(run.is_done for run in runs)
        runs += [stages.start(execution, number) for number in range(2, 4)]
        runs[-1].wait(20)
        results = [run.output(stages.out) for run in runs]
    np.testing.assert_array_equal(results, one_by_one(checked, (0, 1), range(4)))


def test_closing_an_execution_waits_for_its_runs_only(checked: Devices) -> None:
    devices = checked(3)
    mine, others = Stages(devices, (0, 1)), Stages(devices, (0, 2))
    dawdle(devices[1:2], 0.01)
    with Scheduler(devices) as scheduler, gated(devices[2]) as gate:
        execution, stranger = mine.prepare(scheduler), others.prepare(scheduler)
        foreign = others.start(stranger, 0)
        run = mine.start(execution, 0)
        execution.close()
        assert run.is_done
        assert not foreign.is_done
        with pytest.raises(DeviceError, match="execution is closed"):
            mine.start(execution, 1)
        gate.set()


@pytest.mark.parametrize("kind", ["checked", "peers"])
def test_closing_the_scheduler_fails_the_runs_under_way(checked: Devices, peers: Devices, kind: str) -> None:
    devices = checked(3) if kind == "checked" else peers(3)
    stages = Stages(devices, (0, 1, 2))
    dawdle(devices, 0.02)
    scheduler = Scheduler(devices)
    execution = stages.prepare(scheduler)
    runs = [stages.start(execution, number) for number in range(20)]
    runs[0].wait(20)
    started_s = time.monotonic()
    scheduler.close()
    assert time.monotonic() - started_s < 10
    assert all(run.is_done for run in runs)
    np.testing.assert_array_equal([runs[0].output(stages.out)], one_by_one(checked, (0, 1, 2), range(1)))
    with pytest.raises(DeviceError, match="the scheduler was closed while the run was under way"):
        runs[-1].wait()
    assert [device.n_open_plans for device in devices] == [0, 0, 0]
    with pytest.raises(DeviceError, match="scheduler is closed"):
        stages.start(execution, 0)


def test_start_mistakes(checked: Devices) -> None:
    devices = checked(2)
    stages = Stages(devices, (0, 1))
    with Scheduler(devices) as scheduler:
        execution = stages.prepare(scheduler)
        with pytest.raises(GraphError, match="inputs are missing: <leaf x"):
            execution.start({})
        with pytest.raises(GraphError, match=r"<ADD.*no input of this graph; inputs: <leaf x"):
            execution.start({stages.x: values(0), stages.out: values(0)})
        with pytest.raises(GraphError, match="takes 32 bytes of float32, the array has 64 bytes of float64"):
            execution.start({stages.x: np.zeros((2, 4))})
        run = execution.start({stages.x: np.arange(16, dtype=np.float32).reshape(2, 8)[:, ::2]})
        with pytest.raises(GraphError, match="is no output of this graph; outputs: <ADD"):
            run.output(stages.x)
        run.wait(20)
        assert not run.future.cancel()


def test_a_graph_of_nothing_is_done_at_once(checked: Devices) -> None:
    with Scheduler(checked(1)) as scheduler:
        assert scheduler.prepare(Graph([])).start({}).is_done


def test_the_first_device_of_this_process_works_on_the_callers_thread(checked: Devices) -> None:
    devices = checked(2)
    threads: dict[str, str] = {}
    for device in devices:
        name = device.info.name
        device.before_run = lambda _, name=name: threads.update({name: threading.current_thread().name})
    stages = Stages(devices, (0, 1))
    with Scheduler(devices) as scheduler:
        stages.start(stages.prepare(scheduler), 0).wait(20)
    assert threads == {"d0": threading.current_thread().name, "d1": "stream-d1"}


def test_only_what_waits_is_queued(checked: Devices, peers: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[QueuedStream] = []
    start = QueuedStream.__init__

    def watched(stream: QueuedStream, *arguments: Any) -> None:
        made.append(stream)
        start(stream, *arguments)

    monkeypatch.setattr(QueuedStream, "__init__", watched)
    devices = [*checked(1), *peers(1)]
    Scheduler(devices, synchronous=True).close()
    assert made == []
    Scheduler(devices).close()
    assert [stream.device for stream in made] == devices[:1]
