"""Whatever a node reads still lies where it was written, in any graph."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from rpc_backend.graph import Graph, Tensor, build, element_type
from rpc_backend.scheduler import DeviceFacts, GraphPlan, Slot, plan_graph

F32 = element_type("F32")
N_DEVICES = 3


@st.composite
def random_graphs(draw: st.DrawFn) -> tuple[Graph, dict[Tensor, int], list[Tensor]]:
    """A graph of sums, products, views, and writes into caches and results, its leaves placed at random."""
    placement: dict[Tensor, int] = {}
    pool = [build.leaf(F32, [4, 4], name) for name in "xy"]
    for index in range(draw(st.integers(1, 4))):
        weight = build.leaf(F32, [4, 4], f"w{index}")
        placement[weight] = draw(st.integers(0, N_DEVICES - 1))
        pool.append(weight)
    writable = [tensor for tensor in pool if tensor in placement]
    nodes: list[Tensor] = []
    for _ in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(["add", "mul_mat", "scale", "view", "cpy"]))
        a, b = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        if kind == "cpy":
            node = build.cpy(a, draw(st.sampled_from(writable)))
        elif kind == "view":
            node = build.view(a, [4, 4])
        elif kind == "scale":
            node = build.scale(a, 0.5)
        else:
            node = build.add(a, b) if kind == "add" else build.mul_mat(a, b)
            writable.append(node)
        nodes.append(node)
        pool.append(node)
    used = {source.view_src or source for node in nodes for source in node.sources if node.op and node.op.moves_data}
    candidates = [node for node in nodes if node.view_src is None or node.view_src in used | placement.keys()]
    outputs = draw(st.lists(st.sampled_from(candidates), max_size=3)) if candidates else []
    return Graph(nodes), placement, outputs


class Memory:
    """Compute buffers that know what was last written into each byte."""

    def __init__(self) -> None:
        self.held: list[tuple[Slot, object]] = []

    def write(self, slot: Slot, value: object) -> None:
        self.held = [(other, held) for other, held in self.held if not overlap(slot, other)]
        self.held.append((slot, value))

    def holds(self, slot: Slot, value: object) -> bool:
        return (slot, value) in self.held


def overlap(a: Slot, b: Slot) -> bool:
    return a.device == b.device and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


@settings(max_examples=150, deadline=None)
@given(random_graphs())
def test_what_a_node_reads_is_intact(case: tuple[Graph, dict[Tensor, int], list[Tensor]]) -> None:
    graph, placement, outputs = case
    plan = plan_graph(graph, [DeviceFacts(name) for name in "abc"], placement, outputs)
    memory = Memory()
    inputs = {(item.tensor, slot.device): slot for item in plan.inputs for slot in item.slots}
    for (tensor, _), slot in inputs.items():
        memory.write(slot, tensor)
    for split in plan.splits:
        arrived: dict[Slot, Tensor] = {copy.slot: copy.tensor for copy in split.copies}
        for copy in split.copies:
            root = copy.tensor.view_src or copy.tensor
            if root in plan.results:
                assert memory.holds(plan.results[root], root)
            else:
                assert placement[root] == copy.source_device
            memory.write(copy.slot, copy.tensor)
        for node in split.nodes:
            read = [_slot_of(source, split.device, plan, inputs, placement, split.foreign) for source in node.sources]
            for source, slot in zip(node.sources, read, strict=True):
                if slot is not None:
                    value = source if source in split.foreign else source.view_src or source
                    assert memory.holds(slot, value), f"{node} reads {source}, which was overwritten"
            if node in plan.results:
                own = plan.results[node]
                assert own.device == split.device
                assert not any(slot is not None and overlap(own, slot) for slot in read)
                memory.write(own, node)
        assert all(memory.holds(slot, tensor) or slot in split.foreign.values() for slot, tensor in arrived.items())
    for output in outputs:
        root = output.view_src or output
        if root in plan.results:
            assert memory.holds(plan.results[root], root)
    for (tensor, _), slot in inputs.items():
        assert memory.holds(slot, tensor)
    slots = [*inputs.values(), *plan.results.values(), *(copy.slot for copy in plan.copies)]
    assert all(slot.offset + slot.nbytes <= plan.compute_nbytes[slot.device] for slot in slots)


def _slot_of(
    source: Tensor,
    device: int,
    plan: GraphPlan,
    inputs: dict[tuple[Tensor, int], Slot],
    placement: dict[Tensor, int],
    foreign: Mapping[Tensor, Slot],
) -> Slot | None:
    """Where a node on `device` reads `source`; None = in memory that is not the plan's."""
    root = source.view_src or source
    if source in foreign:
        return foreign[source]
    if root in placement:
        assert placement[root] == device
        return None
    return inputs[root, device] if (root, device) in inputs else plan.results[root]
