"""A plan becomes tensors in memory, one graph per split, and both ways to run it: steps and a chain of tasks.

Belongs here: copies of the user's tensors, placed where the plan says; the user's own are never changed. Must
not be here: running them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from rpc_backend.errors import GraphError
from rpc_backend.graph import Graph, Tensor
from rpc_backend.interfaces import Onward, Task
from rpc_backend.scheduler.chain import Chain, chain_of
from rpc_backend.scheduler.handover import Handover
from rpc_backend.scheduler.plan import GraphPlan, Slot, Split
from rpc_backend.scheduler.plan.records import bare_leaf, root_of
from rpc_backend.scheduler.steps import Compute, Step, Transfer
from rpc_backend.scheduler.visits import Visit, plan_visits
from rpc_backend.scheduler.workspace import Workspace

_NOTHING_FOREIGN: Mapping[Tensor, Slot] = {}


class Materialization:
    """The placed tensors, steps and, if there is one, chain of a plan, good for one generation of the workspace.

    `writes` says where an input is: device, placed tensor.

    Raises:
        GraphError: a placed leaf has no memory, or lies on another device than the plan says.
        UnsupportedOpError: from a device's compiler.
    """

    def __init__(self, plan: GraphPlan, workspace: Workspace, handover: Handover) -> None:
        self._plan = plan
        self._workspace = workspace
        self._in_slots: dict[Slot, Tensor] = {}
        self._local: dict[tuple[Tensor, int], Tensor] = {}
        self.generation = workspace.generation
        self.writes: dict[Tensor, list[tuple[int, Tensor]]] = {}
        self.steps: list[Step] = []
        self.chain: Chain | None = None
        try:
            for item in plan.inputs:
                for slot in item.slots:
                    placed = self._local[item.tensor, slot.device] = self._in_slot(slot)
                    self.writes.setdefault(item.tensor, []).append((slot.device, placed))
            itinerary = None if workspace.is_synchronous else plan_visits(plan, workspace.can_send, handover)
            visits = [Visit(split) for split in plan.splits] if itinerary is None else itinerary.visits
            tasks = [self._add_split(visit) for visit in visits]
            if itinerary is not None:
                self.chain = chain_of(itinerary, tasks, plan.outputs)
        except BaseException:
            self.close()
            raise

    def tensor(self, tensor: Tensor) -> tuple[int, Tensor]:
        """Return the home device of a tensor of the plan, and the placed tensor there."""
        device = self._plan.homes[root_of(tensor)]
        return device, self._find(tensor, device, _NOTHING_FOREIGN)

    def close(self) -> None:
        """Close the compiled plans, whatever fails. A second call does nothing."""
        steps, self.steps = self.steps, []
        with ExitStack() as stack:
            for step in steps:
                if isinstance(step, Compute):
                    stack.callback(step.plan.close)

    def _add_split(self, visit: Visit) -> Task:
        """Add the steps of a split, and return what it is as a task of its device."""
        split = visit.split
        for copy in split.copies:
            source = self._find(copy.tensor, copy.source_device, _NOTHING_FOREIGN)
            self.steps.append(Transfer(copy.source_device, source, split.device, self._in_slot(copy.slot)))
        nodes = [self._node(node, split) for node in split.nodes]
        devices = self._workspace.devices
        task = devices[split.device].prepare_task(
            Graph(nodes),
            writes=[self._in_slot(slot) for _, slot in visit.inputs]
            + [self._in_slot(slot) for slot, _, _ in visit.carried],
            reads=[self._find(tensor, split.device, _NOTHING_FOREIGN) for tensor in visit.reads],
            receives=[self._in_slot(slot) for slot, _ in visit.received],
            onward=[
                Onward(self._find(tensor, split.device, _NOTHING_FOREIGN), devices[target])
                for tensor, target, _ in visit.onward
            ],
        )
        self.steps.append(Compute(split.device, task.plan))
        return task

    def _node(self, node: Tensor, split: Split) -> Tensor:
        placed = Tensor(
            node.type,
            node.ne,
            nb=node.nb,
            op=node.op,
            op_params=node.op_params,
            sources=[self._find(source, split.device, split.foreign) for source in node.sources],
            view_src=None if node.view_src is None else self._find(node.view_src, split.device, _NOTHING_FOREIGN),
            view_offs=node.view_offs,
            name=node.name,
        )
        if node.view_src is None:
            self._place(placed, self._plan.results[node])
        self._local[node, split.device] = placed
        return placed

    def _find(self, tensor: Tensor, device: int, foreign: Mapping[Tensor, Slot]) -> Tensor:
        """Return the tensor that stands for the user's on a device."""
        if tensor in foreign:
            return self._in_slot(foreign[tensor])
        found = self._local.get((tensor, device))
        if found is None:
            found = self._local[tensor, device] = self._view_or_leaf(tensor, device)
        return found

    def _view_or_leaf(self, tensor: Tensor, device: int) -> Tensor:
        if tensor.view_src is None:
            self._check_leaf(tensor, device)
            return tensor
        placed = bare_leaf(tensor)
        placed.view_src = self._find(tensor.view_src, device, _NOTHING_FOREIGN)
        placed.view_offs = tensor.view_offs
        return placed

    def _check_leaf(self, leaf: Tensor, device: int) -> None:
        buffer: Any = leaf.buffer
        name = self._workspace.devices[device].info.name
        if buffer is None:
            raise GraphError(f"{leaf} is to be on {name} but has no memory; allocate and upload it first")
        if buffer.device is not self._workspace.devices[device]:
            other = buffer.device.info.name
            raise GraphError(f"{leaf} is to be on device {device} ({name}) but its memory is on another one, {other}")

    def _in_slot(self, slot: Slot) -> Tensor:
        placed = self._in_slots.get(slot)
        if placed is None:
            placed = self._in_slots[slot] = bare_leaf(slot.tensor)
            self._place(placed, slot)
        return placed

    def _place(self, tensor: Tensor, slot: Slot) -> None:
        tensor.buffer = self._workspace.buffer(slot.device)
        tensor.offset = slot.offset
