"""The scheduler: plans graphs over devices, and keeps the memory they run in.

Belongs here: effects of planning on devices. Must not be here: how a plan is found (`plan`).

One thread at a time may use a scheduler and its executions. Runs that were started go on beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

from rpc_backend.errors import GraphError
from rpc_backend.graph import Graph, Tensor
from rpc_backend.interfaces import Device
from rpc_backend.scheduler.execution import Execution
from rpc_backend.scheduler.handover import NO_HANDOVER, Handover
from rpc_backend.scheduler.plan import DeviceFacts, GraphPlan, plan_graph
from rpc_backend.scheduler.plan.records import root_of
from rpc_backend.scheduler.workspace import Workspace


class Scheduler:
    """Runs graphs over several devices, which may be local or remote.

    All executions share one compute buffer per device, as large as the largest of them needs.
    """

    def __init__(self, devices: Sequence[Device], *, synchronous: bool = False, timeout_s: float = 600.0) -> None:
        """Create a stream per device. The devices stay the caller's.

        `synchronous` does all steps of a run one after another, each device waiting for the other; it is there for
        comparison. `timeout_s` is the limit for waiting for runs.
        """
        self._workspace = Workspace(devices, synchronous=synchronous, timeout_s=timeout_s)
        self._facts = [device_facts(device) for device in devices]

    @property
    def devices(self) -> tuple[Device, ...]:
        return self._workspace.devices

    def plan(
        self, graph: Graph, placement: Mapping[Tensor, int] | None = None, outputs: Sequence[Tensor] = ()
    ) -> GraphPlan:
        """Plan a graph without allocating anything; leaves need no memory yet.

        `placement` gives the device index of leaves; one with a buffer that it does not name is on its
        buffer's device. Raises as `plan_graph`.
        """
        return plan_graph(graph, self._facts, {**self._placed(graph), **(placement or {})}, outputs)

    def plan_memory(
        self, graph: Graph, placement: Mapping[Tensor, int] | None = None, outputs: Sequence[Tensor] = ()
    ) -> tuple[int, ...]:
        """Return the compute bytes that a graph would need on each device. Raises as `plan_graph`."""
        return self.plan(graph, placement, outputs).compute_nbytes

    def reserve(self, needed: GraphPlan | Sequence[int]) -> None:
        """Make the compute buffers large enough for a plan, or these bytes per device.

        Growing one has every execution prepared before compile again at its next run, so reserve for the largest
        graph first.

        Raises:
            OutOfMemoryError: from the device.
        """
        self._workspace.reserve(needed.compute_nbytes if isinstance(needed, GraphPlan) else needed)

    def can_hand_over(self, source: int, target: int) -> bool:
        """Whether a run can give a tensor on device `source` to a later run that begins on device `target`."""
        return (
            not self._workspace.is_synchronous
            and self._workspace.can_send(source, target)
            and self.devices[target].buries_tickets
        )

    def prepare(
        self,
        graph: Graph,
        placement: Mapping[Tensor, int] | None = None,
        outputs: Sequence[Tensor] = (),
        handover: Handover = NO_HANDOVER,
    ) -> Execution:
        """Plan and compile a graph, to run many times. The graph itself is not changed.

        The execution holds compiled plans on the devices until it or the scheduler is closed. What `handover` gives
        and takes is no output and no input any more; see `Execution.hands_over`.

        Raises:
            PlanError, GraphError, UnsupportedOpError, OutOfMemoryError: as `plan_graph`; GraphError also if a
                placed leaf has no memory or lies on another device.
        """
        self._workspace.check_open()
        return Execution(self.plan(graph, placement, [*outputs, *handover.gives]), self._workspace, handover)

    def close(self) -> None:
        """Fail the runs under way; close all executions, buffers and streams. A second call does nothing."""
        self._workspace.close()

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _placed(self, graph: Graph) -> dict[Tensor, int]:
        """Return the devices of the leaves that have a buffer."""
        computed = set(graph.nodes)
        indices = {id(device): index for index, device in enumerate(self.devices)}
        placed: dict[Tensor, int] = {}
        for leaf in {root_of(source): None for node in graph.nodes for source in (node, *node.sources)}:
            if leaf not in computed and leaf.buffer is not None:
                index = indices.get(id(leaf.buffer.device))
                if index is None:
                    name = leaf.buffer.device.info.name
                    raise GraphError(f"{leaf} lies on {name}, which is no device of this scheduler")
                placed[leaf] = index
        return placed


def device_facts(device: Device) -> DeviceFacts:
    """Return what a plan must know of a device."""
    info = device.info
    return DeviceFacts(info.name, info.alignment, info.max_buffer_nbytes, device.supports_ops, device.alloc_sizes)
