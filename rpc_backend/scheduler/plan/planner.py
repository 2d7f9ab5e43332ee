"""The planner: a graph, device facts and a placement give a plan.

Belongs here: the order of the passes. Must not be here: the passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rpc_backend.errors import GraphError
from rpc_backend.graph import Graph, Tensor
from rpc_backend.scheduler.plan.allocate import Allocation
from rpc_backend.scheduler.plan.assign import Assignment
from rpc_backend.scheduler.plan.cut import bring_inputs, cut
from rpc_backend.scheduler.plan.records import Copy, DeviceFacts, GraphPlan, Input, Split, root_of


def plan_graph(
    graph: Graph, devices: Sequence[DeviceFacts], placement: Mapping[Tensor, int], outputs: Sequence[Tensor] = ()
) -> GraphPlan:
    """Place a graph on devices. Equal inputs give equal plans.

    `placement` gives the device of leaves that have memory (weights, caches); it may also name a computed tensor,
    to have it computed there. Leaves that it does not name are inputs. `outputs` keep their memory to the end of
    a run.

    Passes: 1 pin, 2 spread, 3 views stay with their source, 4 check support, 5 cut into splits, 6 bring inputs,
    7 allocate.

    Raises:
        PlanError: a placement on a device that does not exist.
        GraphError: a placed view, a node that writes into an input, or an output that the graph does not have.
        UnsupportedOpError: no device that may run a node supports it; names op and device.
        OutOfMemoryError: a compute buffer is larger than its device allows.
    """
    assignment = Assignment(graph, devices, placement)
    assignment.run()
    drafts = cut(assignment)
    inputs = bring_inputs(assignment, drafts)
    _check_outputs(assignment, inputs, outputs)
    allocation = Allocation(assignment, drafts, inputs, outputs)
    compute_nbytes = allocation.run()
    slots = allocation.slots
    homes = {**assignment.homes, **{tensor: devices[0] for tensor, devices in inputs.items()}}
    return GraphPlan(
        devices=tuple(device.name for device in devices),
        splits=tuple(
            Split(
                draft.device,
                tuple(draft.nodes),
                tuple(Copy(arrival.tensor, arrival.source_device, slots[arrival]) for arrival in draft.arrivals),
                {tensor: slots[arrival] for tensor, arrival in draft.foreign.items()},
            )
            for draft in drafts
        ),
        inputs=tuple(Input(tensor, tuple(slots[tensor, device] for device in used)) for tensor, used in inputs.items()),
        outputs=tuple(outputs),
        homes=homes,
        results={node: slots[node] for node in assignment.nodes if node in assignment.results},
        compute_nbytes=compute_nbytes,
        notes=tuple(assignment.notes),
    )


def _check_outputs(assignment: Assignment, inputs: Mapping[Tensor, Sequence[int]], outputs: Sequence[Tensor]) -> None:
    for output in outputs:
        root = root_of(output)
        if root not in assignment.homes and root not in inputs:
            raise GraphError(f"{output} is no part of the graph, it cannot be an output")
