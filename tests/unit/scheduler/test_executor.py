"""Executions: the same results on one, two and three devices, and what goes wrong when misused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rpc_backend.errors import (
    ComputeError,
    DeviceError,
    GraphError,
    OutOfMemoryError,
    PlanError,
    UnsupportedOpError,
    WorkerLostError,
)
from rpc_backend.graph import Graph, Tensor, Unary, build, element_type
from rpc_backend.interfaces import BufferUsage, SerialStream
from rpc_backend.scheduler import Execution, Scheduler
from rpc_backend.scheduler.steps import Compute, Transfer, Write

F32, F16, I32 = element_type("F32"), element_type("F16"), element_type("I32")
Array = npt.NDArray[Any]
Checked = Callable[..., list[Any]]


class Model:
    """A small transformer-like graph with caches, over devices; `layer_devices` has a device per layer."""

    def __init__(self, devices: Sequence[Any], layer_devices: Sequence[int], n_tokens: int = 3) -> None:
        self.devices, self.random = devices, np.random.default_rng(7)
        self.tokens = build.leaf(I32, [n_tokens], "tokens")
        self.rows = build.leaf(I32, [n_tokens], "rows")
        self.mask = build.leaf(F32, [8, n_tokens], "mask")
        x = build.get_rows(self.weight("embedding", layer_devices[0], 16, 32), self.tokens)
        writes: list[Tensor] = []
        for layer, device in enumerate(layer_devices):
            cur = build.mul(build.rms_norm(x, 1e-5), self.weight(f"norm{layer}", device, 16))
            key = build.mul_mat(self.weight(f"wk{layer}", device, 16, 16), cur)
            cache = self.weight(f"cache{layer}", device, 16, 24, zero=True)
            writes.append(build.set_rows(cache, key, self.rows))
            cached = build.view(cache, [16, 8])
            scores = build.soft_max(build.mul_mat(cached, cur), self.mask, 0.25)
            value = build.mul_mat(build.cont(build.transpose(cached)), scores)
            x = build.add(build.unary(Unary.SILU, value), x)
        self.hidden = x
        self.logits = build.mul_mat(self.weight("output", layer_devices[-1], 16, 32), build.rms_norm(x, 1e-5))
        self.graph = Graph.of(*writes, self.logits)

    def weight(self, name: str, device: int, *ne: int, zero: bool = False) -> Tensor:
        values = self.random.standard_normal(ne[::-1]).astype(np.float32)
        return self.devices[device].put(name, np.zeros_like(values) if zero else values)

    def step(self, execution: Execution, tokens: Sequence[int], first: int) -> Array:
        rows = np.arange(first, first + len(tokens), dtype=np.int32)
        mask = np.where(np.arange(8)[None, :] <= rows[:, None], 0, -np.inf).astype(np.float32)
        execution.set_input(self.tokens, np.array(tokens, np.int32))
        execution.set_input(self.rows, rows)
        execution.set_input(self.mask, mask)
        execution.run()
        return execution.get_output(self.logits)


def two_steps(
    checked: Checked, layer_devices: Sequence[int], *, synchronous: bool = False, **options: Any
) -> list[Array]:
    devices = checked(max(layer_devices) + 1, **options)
    model = Model(devices, layer_devices)
    with Scheduler(devices, synchronous=synchronous) as scheduler:
        execution = scheduler.prepare(model.graph, outputs=[model.logits])
        return [model.step(execution, [5, 9, 31], 0), model.step(execution, [1, 1, 30], 3)]


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("layer_devices", [(0, 0, 1, 1), (0, 1, 1, 2), (2, 0, 1, 0), (0, 1, 0, 1)])
def test_results_do_not_depend_on_the_devices(
    checked: Checked, layer_devices: tuple[int, ...], isolated: bool, synchronous: bool
) -> None:
    expected = two_steps(checked, (0, 0, 0, 0))
    assert np.isfinite(expected).all()
    assert not np.array_equal(expected[0], expected[1])
    results = two_steps(checked, layer_devices, isolated=isolated, synchronous=synchronous)
    np.testing.assert_array_equal(results, expected)


def test_a_node_that_a_device_lacks_runs_elsewhere(checked: Checked) -> None:
    devices = [*checked(1, lacks="SOFT_MAX"), *checked(2)[1:]]
    model = Model(devices, (0, 0, 0, 0))
    with Scheduler(devices) as scheduler:
        execution = scheduler.prepare(model.graph, outputs=[model.logits])
        results = [model.step(execution, [5, 9, 31], 0), model.step(execution, [1, 1, 30], 3)]
    assert len(execution.plan.notes) == 4
    np.testing.assert_array_equal(results, two_steps(checked, (0, 0, 0, 0)))


def test_no_device_has_it(checked: Checked) -> None:
    devices = checked(2, lacks="SOFT_MAX")
    with Scheduler(devices) as scheduler, pytest.raises(UnsupportedOpError, match="SOFT_MAX"):
        scheduler.prepare(Model(devices, (0, 1)).graph)


def test_the_users_graph_stays_as_it_was(checked: Checked) -> None:
    devices = checked(2)
    model = Model(devices, (0, 1))
    before = [(tensor.buffer, tensor.offset, tensor.sources, tensor.view_src) for tensor in model.graph.tensors()]
    with Scheduler(devices) as scheduler:
        scheduler.prepare(model.graph, outputs=[model.logits]).close()
    assert before == [
        (tensor.buffer, tensor.offset, tensor.sources, tensor.view_src) for tensor in model.graph.tensors()
    ]


def test_plans_before_anything_is_allocated(checked: Checked) -> None:
    devices = checked(2)
    w0, w1, x = build.leaf(F32, [64, 64], "w0"), build.leaf(F32, [64, 64], "w1"), build.leaf(F32, [64, 2], "x")
    out = build.mul_mat(w1, build.mul_mat(w0, x))
    with Scheduler(devices) as scheduler:
        placement = {w0: 0, w1: 1}
        assert scheduler.plan_memory(Graph.of(out), placement, [out]) == (2 * 512, 2 * 512)
        assert [device.buffers for device in devices] == [[], []]
        with pytest.raises(GraphError, match=r"w0.*has no memory; allocate and upload it first"):
            scheduler.prepare(Graph.of(out), placement, [out])


def test_a_leaf_on_the_wrong_device_is_refused(checked: Checked) -> None:
    devices = checked(2)
    w = devices[0].put("w", np.ones((8, 8), np.float32))
    out = build.mul_mat(w, build.leaf(F32, [8, 2], "x"))
    with Scheduler(devices) as scheduler:
        with pytest.raises(GraphError, match=r"w .*to be on device 1 \(d1\) but its memory is on another one, d0"):
            scheduler.prepare(Graph.of(out), {w: 1}, [out])
        assert [device.n_open_plans for device in devices] == [0, 0]
    with Scheduler(devices[1:]) as scheduler, pytest.raises(GraphError, match="d0, which is no device of this"):
        scheduler.prepare(Graph.of(out), outputs=[out])


def test_inputs_are_kept_and_sent_again_only_when_they_must(checked: Checked) -> None:
    devices = checked(2)
    model = Model(devices, (0, 1))
    other = Model(devices, (1, 0))
    with Scheduler(devices) as scheduler:
        execution = scheduler.prepare(model.graph, outputs=[model.logits])
        stranger = scheduler.prepare(other.graph, outputs=[other.logits])
        first = model.step(execution, [5, 9, 31], 0)
        assert not [step for step in execution.steps() if isinstance(step, Write)]
        execution.run()  # steps() was asked in between: the devices hold nothing sure
        execution.set_input(model.tokens, np.array([5, 9, 31], np.int32))
        assert [step.tensor.name for step in execution.steps() if isinstance(step, Write)] == ["tokens"]
        other.step(stranger, [3, 3, 3], 0)
        names = [step.tensor.name for step in execution.steps() if isinstance(step, Write)]
        assert sorted(names) == ["mask", "mask", "rows", "rows", "tokens"]
        execution.run()
        np.testing.assert_array_equal(execution.get_output(model.logits), first)


def test_steps_are_writes_then_a_transfer_per_border(checked: Checked) -> None:
    devices = checked(2)
    model = Model(devices, (0, 1))
    with Scheduler(devices) as scheduler:
        execution = scheduler.prepare(model.graph, outputs=[model.logits])
        for tensor in (model.tokens, model.rows, model.mask):
            execution.set_input(tensor, np.zeros(tensor.ne[::-1], tensor.type.dtype))
        kinds = [type(step) for step in execution.steps()]
    assert kinds == [Write] * 5 + [Compute, Transfer, Compute]
    assert all(node.op and node.op.moves_data for device in devices for graph in device.graphs for node in graph.nodes)
    assert [device.n_streams for device in devices] == [1, 1]


def test_two_executions_alternate_on_one_compute_buffer(checked: Checked) -> None:
    devices = checked(2)
    with Scheduler(devices) as scheduler:
        models = [Model(devices, (0, 1)), Model(devices, (0, 1), n_tokens=1)]
        executions = [scheduler.prepare(model.graph, outputs=[model.logits]) for model in models]
        alternating = [
            model.step(execution, [token] * model.tokens.ne[0], 0)
            for token in range(5)
            for model, execution in zip(models, executions, strict=True)
        ]
        executions[0].run()
        with pytest.raises(GraphError, match="last thing that ran was not this execution"):
            executions[1].get_output(models[1].logits)
    for index, model in enumerate([Model(devices, (0, 1)), Model(devices, (0, 1), n_tokens=1)]):
        with Scheduler(devices) as scheduler:
            execution = scheduler.prepare(model.graph, outputs=[model.logits])
            alone = [model.step(execution, [token] * model.tokens.ne[0], 0) for token in range(5)]
        for mine, expected in zip(alternating[index::2], alone, strict=True):
            np.testing.assert_array_equal(mine, expected)


def test_growth_replaces_the_buffer_and_older_executions_still_run(checked: Checked) -> None:
    devices = checked(2)
    small, large = Model(devices, (0, 1), n_tokens=1), Model(devices, (0, 1), n_tokens=8)
    with Scheduler(devices) as scheduler:
        execution = scheduler.prepare(small.graph, outputs=[small.logits])
        first = small.step(execution, [4], 0)
        old = [graph for device in devices for graph in device.graphs]
        large.step(scheduler.prepare(large.graph, outputs=[large.logits]), list(range(8)), 0)
        np.testing.assert_array_equal(small.step(execution, [4], 0), first)
        assert [device.n_open_plans for device in devices] == [2, 2]
        compute = [buffer for device in devices for buffer in device.buffers if buffer.usage is BufferUsage.COMPUTE]
        assert len(compute) == 4
        with pytest.raises(DeviceError, match="closed"):
            _ = old[0].nodes[0].buffer.bytes
    assert [device.n_open_plans for device in devices] == [0, 0]
    for buffer in compute:
        with pytest.raises(DeviceError, match="closed"):
            _ = buffer.bytes


def test_a_reserved_buffer_is_not_replaced(checked: Checked) -> None:
    devices = checked(2)
    small, large = Model(devices, (0, 1), n_tokens=1), Model(devices, (0, 1), n_tokens=8)
    with Scheduler(devices) as scheduler:
        scheduler.reserve(scheduler.plan(large.graph, outputs=[large.logits]))
        for model in (small, large):
            scheduler.prepare(model.graph, outputs=[model.logits])
        scheduler.reserve([10, 10])
        usages = [buffer.usage for device in devices for buffer in device.buffers]
        assert usages.count(BufferUsage.COMPUTE) == 2


def test_memory_that_is_not_there(checked: Checked) -> None:
    devices = [*checked(1), *checked(2, limit_nbytes=4096)[1:]]
    model = Model(devices, (0, 1))
    with Scheduler(devices) as scheduler:
        execution = scheduler.prepare(model.graph, outputs=[model.logits])
        expected = model.step(execution, [1, 2, 3], 0)
        with pytest.raises(OutOfMemoryError, match="free 4096"):
            scheduler.reserve([0, 5000])
        np.testing.assert_array_equal(model.step(execution, [1, 2, 3], 0), expected)


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_failed_run_can_be_repeated(checked: Checked, broken: int, synchronous: bool) -> None:
    devices = checked(3)
    model = Model(devices, (0, 1, 2))
    with Scheduler(devices, synchronous=synchronous) as scheduler:
        execution = scheduler.prepare(model.graph, outputs=[model.logits])
        expected = model.step(execution, [1, 2, 3], 0)
        devices[broken].fail = ComputeError("broken").located(op="ADD")  # type: ignore[assignment]
        with pytest.raises(ComputeError, match=rf"broken \(device d{broken}, op ADD\)"):
            execution.run()
        with pytest.raises(GraphError, match="last thing that ran"):
            execution.get_output(model.logits)
        execution.run()
        np.testing.assert_array_equal(execution.get_output(model.logits), expected)


def product(devices: Sequence[Any]) -> tuple[Tensor, Tensor]:
    x = build.leaf(F32, [8, 2], "x")
    return x, build.mul_mat(devices[0].put("w", np.eye(8, dtype=np.float32)), x)


def test_input_mistakes(checked: Checked) -> None:
    devices = checked(1)
    x, out = product(devices)
    with Scheduler(devices) as scheduler:
        execution = scheduler.prepare(Graph.of(out), outputs=[out])
        with pytest.raises(GraphError, match=r"never set: <leaf x"):
            execution.run()
        with pytest.raises(GraphError, match=r"is no input of this graph; inputs: <leaf x"):
            execution.set_input(out, np.zeros((2, 8), np.float32))
        with pytest.raises(GraphError, match="takes 64 bytes of float32, the array has 128 bytes of float64"):
            execution.set_input(x, np.zeros((2, 8)))
        with pytest.raises(GraphError, match="the array has 96 bytes of float32"):
            execution.set_input(x, np.zeros((3, 8), np.float32))
        execution.set_input(x, np.arange(32, dtype=np.float32).reshape(2, 16)[:, ::2])
        execution.run()
        np.testing.assert_array_equal(execution.get_output(out).ravel(), np.arange(0, 32, 2))


def test_output_mistakes(checked: Checked) -> None:
    devices = checked(1)
    x, out = product(devices)
    turned = build.transpose(out)
    with Scheduler(devices) as scheduler:
        execution = scheduler.prepare(Graph.of(turned), outputs=[out, turned])
        execution.set_input(x, np.ones((2, 8), np.float32))
        with pytest.raises(GraphError, match="last thing that ran was not this"):
            execution.get_output(out)
        execution.run()
        with pytest.raises(GraphError, match="is no output of this graph; outputs: <MUL_MAT"):
            execution.get_output(x)
        with pytest.raises(GraphError, match="make it contiguous"):
            execution.get_output(turned)
        with pytest.raises(GraphError, match="takes 64 bytes"):
            execution.get_output(out, np.empty((2, 8)))
        with pytest.raises(GraphError, match="contiguous and writeable"):
            execution.get_output(out, np.empty((8, 2), np.float32).T)
        mine = np.empty((2, 8), np.float32)
        assert execution.get_output(out, mine) is mine
        np.testing.assert_array_equal(mine, np.ones((2, 8)))


def test_closed_things_say_so(checked: Checked) -> None:
    devices = checked(1)
    x, out = product(devices)
    scheduler = Scheduler(devices)
    first, second = (scheduler.prepare(Graph.of(out), outputs=[out]) for _ in range(2))
    first.close()
    first.close()
    with pytest.raises(DeviceError, match="execution is closed"):
        first.run()
    scheduler.close()
    scheduler.close()
    assert devices[0].n_open_plans == 0
    second.set_input(x, np.ones((2, 8), np.float32))
    for action in (second.run, lambda: scheduler.prepare(Graph.of(out)), lambda: scheduler.reserve([1])):
        with pytest.raises(DeviceError, match="scheduler is closed"):
            action()


def test_closing_goes_on_when_a_device_is_gone(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = checked(2)
    model = Model(devices, (0, 1))
    scheduler = Scheduler(devices)
    scheduler.prepare(model.graph, outputs=[model.logits])
    compute = [device.buffers[-1] for device in devices]

    def gone(stream: SerialStream) -> None:
        raise WorkerLostError(f"{stream.device.info.name} is gone")

    monkeypatch.setattr(SerialStream, "close", gone)
    with pytest.raises(WorkerLostError, match="d0 is gone"):
        scheduler.close()
    assert [device.n_open_plans for device in devices] == [0, 0]
    for buffer in compute:
        with pytest.raises(DeviceError, match="closed"):
            _ = buffer.bytes
    scheduler.close()


def test_no_devices() -> None:
    with pytest.raises(PlanError, match="at least one device"):
        Scheduler([])
