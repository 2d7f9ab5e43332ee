"""Graph plans: where nodes go, what is copied, what memory is reused."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from rpc_backend.errors import GraphError, OutOfMemoryError, PlanError, UnsupportedOpError
from rpc_backend.graph import Graph, RopeMode, Tensor, Unary, build, element_type
from rpc_backend.scheduler import DeviceFacts, GraphPlan, Slot, plan_graph

F32, F16, I32 = element_type("F32"), element_type("F16"), element_type("I32")
THREE = [DeviceFacts("a"), DeviceFacts("b"), DeviceFacts("c")]


def leaf(name: str, *ne: int) -> Tensor:
    return build.leaf(F32, ne, name)


@dataclass
class Toy:
    """A model with a norm, a matrix, a cache and a residual per layer; `placement` has layer -> device."""

    layer_devices: Sequence[int]
    width: int = 8
    n_tokens: int = 4
    placement: dict[Tensor, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        width, n_tokens = self.width, self.n_tokens
        self.tokens = build.leaf(I32, [n_tokens], "tokens")
        self.rows = build.leaf(I32, [n_tokens], "rows")
        self.mask = leaf("mask", 16, n_tokens)
        x = build.get_rows(self.weight("embedding", 0, width, 32), self.tokens)
        nodes: list[Tensor] = []
        self.norms: list[Tensor] = []
        for layer, device in enumerate(self.layer_devices):
            norm = build.rms_norm(x, 1e-5)
            self.norms.append(norm)
            cur = build.mul(norm, self.weight(f"norm{layer}", device, width))
            key = build.mul_mat(self.weight(f"wk{layer}", device, width, width), cur)
            written = build.set_rows(self.weight(f"cache{layer}", device, width, 32), key, self.rows)
            nodes.append(written)
            assert written.view_src is not None
            cached = build.view(written.view_src, [width, 16])
            scores = build.soft_max(build.mul_mat(cached, cur), self.mask, 0.5)
            value = build.mul_mat(build.cont(build.transpose(cached)), scores)
            x = build.add(build.unary(Unary.SILU, value), x)
        self.logits = build.mul_mat(self.weight("output", self.layer_devices[-1], width, 32), build.rms_norm(x, 1e-5))
        self.graph = Graph.of(*nodes, self.logits)

    def weight(self, name: str, device: int, *ne: int) -> Tensor:
        tensor = leaf(name, *ne)
        self.placement[tensor] = device
        return tensor

    def plan(self, devices: Sequence[DeviceFacts] = THREE) -> GraphPlan:
        return plan_graph(self.graph, devices, self.placement, [self.logits])


def test_layers_become_one_split_per_device_and_one_copy_per_border() -> None:
    toy = Toy([0, 0, 1, 1, 2, 2])
    plan = toy.plan()
    assert [split.device for split in plan.splits] == [0, 1, 2]
    assert [len(split.copies) for split in plan.splits] == [0, 1, 1]
    # The norm of a border layer moves to the side that reads it, so that only its source crosses.
    assert plan.homes[toy.norms[2]] == 1
    for before, split in zip(plan.splits, plan.splits[1:], strict=False):
        copy = split.copies[0]
        assert (copy.source_device, copy.slot.device) == (before.device, split.device)
        assert copy.tensor.op is not None
        assert copy.tensor.op.name == "ADD"


def test_an_input_is_written_to_every_device_that_reads_it() -> None:
    toy = Toy([0, 1, 2])
    where = {item.tensor: [slot.device for slot in item.slots] for item in toy.plan().inputs}
    assert where == {toy.tokens: [0], toy.rows: [0, 1, 2], toy.mask: [0, 1, 2]}


def test_views_are_no_nodes_and_a_view_of_an_input_needs_no_copy() -> None:
    x, w0, w1 = leaf("x", 8, 4), leaf("w0", 8, 8), leaf("w1", 8, 8)
    part = build.view(x, [8, 2], offset_bytes=64)
    out = build.concat(build.mul_mat(w0, part), build.mul_mat(w1, part), 1)
    plan = plan_graph(Graph.of(out), THREE, {w0: 0, w1: 1}, [out])
    assert [slot.device for slot in plan.inputs[0].slots] == [0, 1]
    assert [copy.tensor.op and copy.tensor.op.name for copy in plan.copies] == ["MUL_MAT"]
    assert part not in [node for split in plan.splits for node in split.nodes]


def test_a_foreign_view_is_copied_with_its_own_span() -> None:
    cache, w = leaf("cache", 8, 100), leaf("w", 16, 4)
    part = build.view(cache, [16, 3], nb=[4, 96, 0, 0], offset_bytes=32)
    out = build.mul_mat(w, part)
    plan = plan_graph(Graph.of(out), THREE, {cache: 0, w: 1}, [out])
    (copy,) = plan.copies
    assert (copy.source_device, copy.slot.device, copy.slot.nbytes) == (0, 1, 2 * 96 + 64)
    assert copy.tensor is part


def test_what_several_nodes_read_is_copied_once_per_device() -> None:
    w0, w1, w2, x = leaf("w0", 8, 8), leaf("w1", 8, 8), leaf("w2", 8, 8), leaf("x", 8, 2)
    shared = build.mul_mat(w0, x)
    one = build.mul_mat(w1, shared)
    back = build.mul_mat(w0, one)
    again = build.mul_mat(w1, build.mul(back, shared))
    third = build.mul_mat(w2, shared)
    out = build.add(build.mul_mat(w1, build.mul(again, build.mul_mat(w1, shared))), third)
    plan = plan_graph(Graph.of(out), THREE, {w0: 0, w1: 1, w2: 2}, [out])
    assert [copy.slot.device for copy in plan.copies if copy.tensor is shared] == [1, 2]


def test_memory_written_after_a_copy_is_copied_again() -> None:
    cache, w0, w1, x = leaf("cache", 8, 2), leaf("w0", 8, 8), leaf("w1", 8, 8), leaf("x", 8, 2)
    window = build.view(cache, [8, 2])
    before = build.mul_mat(w1, window)
    written = build.cpy(build.mul_mat(w0, x), cache)
    after = build.mul_mat(w1, window)
    graph = Graph([before, *Graph.of(written).nodes, after, build.add(before, after)])
    plan = plan_graph(graph, THREE, {cache: 0, w0: 0, w1: 1}, [graph.nodes[-1]])
    assert [copy.tensor for copy in plan.copies if copy.source_device == 0] == [window, window]


def test_a_write_goes_to_its_destination_and_a_product_to_its_weight() -> None:
    cache, w, other, rows = leaf("cache", 8, 9), leaf("w", 8, 8), leaf("other", 8, 2), build.leaf(I32, [2], "rows")
    product = build.mul_mat(w, other)
    written = build.set_rows(cache, product, rows)
    plan = plan_graph(Graph.of(written), THREE, {cache: 2, w: 1, other: 0})
    assert [split.device for split in plan.splits] == [1, 2]
    assert [(copy.source_device, copy.slot.device) for copy in plan.copies] == [(0, 1), (1, 2)]
    assert plan.inputs[0].slots[0].device == 2


def test_writes_into_a_computed_tensor_stay_with_it() -> None:
    w0, w1, x = leaf("w0", 8, 8), leaf("w1", 8, 8), leaf("x", 8, 2)
    base = build.mul_mat(w0, x)
    written = build.cpy(build.mul_mat(w1, x), build.view(base, [8, 2]))
    out = build.mul_mat(w1, written)
    plan = plan_graph(Graph.of(out), THREE, {w0: 0, w1: 1}, [out])
    assert [split.device for split in plan.splits] == [1, 0, 1]
    assert plan.splits[1].nodes == (base, written)
    assert set(plan.results) == {base, written.sources[0], out}


def test_rotation_factors_pin_nothing() -> None:
    w, factors = leaf("w", 8, 8), leaf("factors", 4)
    x, positions = leaf("x", 8, 2), build.leaf(I32, [2], "positions")
    rotated = build.rope(
        build.reshape(build.mul_mat(w, x), [8, 1, 2]), positions, factors, n_dims=8, mode=RopeMode.NORMAL
    )
    plan = plan_graph(Graph.of(rotated), THREE, {w: 1, factors: 0}, [rotated])
    assert plan.homes[rotated] == 1
    assert [copy.tensor for copy in plan.copies] == [factors]


def test_what_is_computed_from_inputs_goes_to_its_reader() -> None:
    mask, w, x = leaf("mask", 8, 2), leaf("w", 8, 8), leaf("x", 8, 2)
    doubled = build.scale(mask, 2.0)
    out = build.add(build.mul_mat(w, x), doubled)
    alone = build.scale(mask, 3.0)
    plan = plan_graph(Graph.of(out, alone), THREE, {w: 2}, [out, alone])
    assert (plan.homes[doubled], plan.homes[alone]) == (2, 0)


def test_a_computed_tensor_can_be_placed_by_name() -> None:
    w, x = leaf("w", 8, 8), leaf("x", 8, 2)
    product = build.mul_mat(w, x)
    out = build.scale(product, 2.0)
    plan = plan_graph(Graph.of(out), THREE, {w: 0, out: 1}, [out])
    assert (plan.homes[product], plan.homes[out]) == (0, 1)


def without(*op_names: str, asked: list[int] | None = None) -> Callable[[Sequence[Tensor]], list[bool]]:
    def supports(nodes: Sequence[Tensor]) -> list[bool]:
        if asked is not None:
            asked.append(len(nodes))
        return [node.op is not None and node.op.name not in op_names for node in nodes]

    return supports


def test_an_unsupported_node_goes_where_it_can_run() -> None:
    asked: list[int] = []
    supports = [without("SOFT_MAX", "UNARY", asked=asked), without("SOFT_MAX", asked=asked), without(asked=asked)]
    facts = [DeviceFacts(name, supports=answer) for name, answer in zip("abc", supports, strict=True)]
    toy = Toy([0, 0, 0, 0])
    plan = toy.plan(facts)
    homes = [(node.op.name, plan.homes[node]) for node in plan.results if node.op]
    assert {home for op, home in homes if op == "SOFT_MAX"} == {2}
    assert {home for op, home in homes if op == "UNARY"} == {1}
    assert {home for op, home in homes if op not in ("SOFT_MAX", "UNARY")} == {0}
    assert len(plan.notes) == 8
    assert "runs on c, because a does not support it" in " ".join(plan.notes)
    assert len(asked) <= 4, "one question per device and pass, however many nodes"


def test_no_device_supports_it() -> None:
    facts = [DeviceFacts("a", supports=without("SOFT_MAX")), DeviceFacts("b", supports=without("SOFT_MAX"))]
    with pytest.raises(UnsupportedOpError, match=r"SOFT_MAX.*none of a, b supports it") as info:
        Toy([0, 1]).plan(facts)
    assert info.value.context.op == "SOFT_MAX"
    assert info.value.context.device == "a"


def test_a_write_cannot_leave_its_destination() -> None:
    facts = [DeviceFacts("a"), DeviceFacts("b", supports=without("SET_ROWS"))]
    with pytest.raises(UnsupportedOpError, match="b does not support it and holds what it writes into") as info:
        Toy([0, 1]).plan(facts)
    assert (info.value.context.op, info.value.context.device) == ("SET_ROWS", "b")


def test_bad_placements() -> None:
    w, x = leaf("w", 8, 8), leaf("x", 8, 2)
    out = build.mul_mat(w, x)
    graph = Graph.of(out)
    with pytest.raises(PlanError, match="at least one device"):
        plan_graph(graph, [], {})
    with pytest.raises(PlanError, match="placed on device 3; there are 3"):
        plan_graph(graph, THREE, {w: 3})
    with pytest.raises(PlanError, match="placed on device -1"):
        plan_graph(graph, THREE, {w: -1})
    with pytest.raises(GraphError, match="is a view"):
        plan_graph(graph, THREE, {build.view(w, [8, 2]): 0})
    with pytest.raises(GraphError, match="no part of the graph"):
        plan_graph(graph, THREE, {w: 0}, [leaf("stranger", 4)])
    written = build.cpy(out, x)
    with pytest.raises(GraphError, match="placed on no device"):
        plan_graph(Graph.of(written), THREE, {w: 0})


def test_a_compute_buffer_above_the_limit_of_its_device() -> None:
    with pytest.raises(OutOfMemoryError, match=r"compute buffer of .* bytes\) on b, which allows 100 B") as info:
        Toy([0, 1]).plan([DeviceFacts("a"), DeviceFacts("b", max_buffer_nbytes=100)])
    assert info.value.context.device == "b"


def test_sizes_and_alignment_are_the_devices_own() -> None:
    asked: list[int] = []

    def padded(tensors: Sequence[Tensor]) -> list[int]:
        asked.append(len(tensors))
        return [tensor.nbytes + 100 for tensor in tensors]

    plan = Toy([0, 1, 2]).plan([DeviceFacts("a"), DeviceFacts("b", 256, alloc_sizes=padded), DeviceFacts("c")])
    on_b = [slot for slot in all_slots(plan) if slot.device == 1]
    assert on_b
    assert all(slot.offset % 256 == 0 and slot.nbytes == slot.tensor.nbytes + 100 for slot in on_b)
    assert len(asked) == 1
    lying = [DeviceFacts("a", alloc_sizes=lambda tensors: [1] * len(tensors))]
    assert all(slot.nbytes == slot.tensor.nbytes for slot in all_slots(Toy([0]).plan(lying)))


def test_equal_inputs_give_equal_plans() -> None:
    toy = Toy([0, 1, 1, 2])
    assert toy.plan() == toy.plan()
    assert toy.plan().describe() == Toy([0, 1, 1, 2]).plan().describe()
    offsets = [[(slot.device, slot.offset) for slot in all_slots(Toy([0, 1, 1, 2]).plan())] for _ in range(2)]
    assert offsets[0] == offsets[1]


def test_memory_is_reused() -> None:
    x = leaf("x", 256)
    out: Tensor = x
    for _ in range(50):
        out = build.scale(out, 2.0)
    plan = plan_graph(Graph.of(out), THREE, {}, [out])
    assert plan.compute_nbytes == (3 * 1024, 0, 0)


def test_memory_of_copies_is_reused() -> None:
    weights = [leaf("w0", 64, 64), leaf("w1", 64, 64)]
    out = leaf("x", 64)
    for step in range(40):
        out = build.mul_mat(weights[step % 2], out)
    plan = plan_graph(Graph.of(out), THREE, {weights[0]: 0, weights[1]: 1}, [out])
    assert len(plan.copies) == 39
    # A result, what it is computed from, and on the first device the input.
    assert plan.compute_nbytes == (3 * 256, 2 * 256, 0)


def test_prints_as_a_table() -> None:
    plan = Toy([0, 1]).plan()
    assert plan.rows()[0] == ["split", "device", "nodes", "first", "last", "copies", "copied"]
    assert plan.rows()[2][1:] == ["b", "12", "RMS_NORM", "MUL_MAT", "1", "128 B"]
    assert "b: compute buffer" in plan.describe()


def test_thirty_layers_are_planned_quickly() -> None:
    toy = Toy([layer // 10 for layer in range(30) for _ in range(3)])
    best = min(_seconds(toy.plan) for _ in range(5))
    assert len(toy.graph.nodes) > 900
    assert best < 0.05, f"planning took {best * 1e3:.0f} ms"


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def all_slots(plan: GraphPlan) -> list[Slot]:
    slots = [slot for item in plan.inputs for slot in item.slots]
    return [*slots, *(copy.slot for copy in plan.copies), *plan.results.values()]
