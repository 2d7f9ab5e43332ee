"""What enters and leaves each split of a plan, so that a whole visit to a device can be asked for at once.

Belongs here: a pure function of a plan. Must not be here: devices, memory, or how visits are made (`pipeline`).

A copy between devices has two ways. Carried: the visit at its source gives the bytes to the host, which gives them to
the visit at its target. Direct: the source's device sends them to the target's, which recognises them by a ticket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rpc_backend.graph import Tensor
from rpc_backend.scheduler.plan import Copy, GraphPlan, Slot, Split
from rpc_backend.scheduler.plan.records import root_of


@dataclass(eq=False, slots=True)
class Visit:
    """One split with what goes in and out. Tensors are the user's.

    `inputs` are (position in the plan's inputs, slot). `carried` are (slot, visit, position among its reads).
    `received` are (slot, ticket), `onward` are (tensor, device, ticket); a ticket is a number within the run.
    """

    split: Split
    inputs: list[tuple[int, Slot]] = field(default_factory=list)
    carried: list[tuple[Slot, int, int]] = field(default_factory=list)
    received: list[tuple[Slot, int]] = field(default_factory=list)
    reads: list[Tensor] = field(default_factory=list)
    onward: list[tuple[Tensor, int, int]] = field(default_factory=list)

    def read(self, tensor: Tensor) -> int:
        """Have a tensor read at the end of the visit, once; return its position among the reads."""
        if tensor not in self.reads:
            self.reads.append(tensor)
        return self.reads.index(tensor)


@dataclass(eq=False, slots=True)
class Itinerary:
    """The visits of a plan in order; `outputs` says for each which visit reads it, and at which position.

    `overlaps` says that no device is visited twice, so that other runs may use the compute buffers between the visits.
    """

    visits: list[Visit]
    outputs: dict[Tensor, tuple[int, int]]
    n_tickets: int
    overlaps: bool


def plan_visits(plan: GraphPlan, sends: Callable[[int, int], bool]) -> Itinerary | None:
    """Return the visits that a plan takes; `sends` says whether one device can send to another.

    What a later visit or the user needs is read at the end of the last visit before, as it would be if all was done
    in order. None = something is needed of a device that was not visited before: the plan runs step by step only.
    An output with gaps between its elements is left out.
    """
    visits = [Visit(split) for split in plan.splits]
    latest: dict[int, int] = {}
    n_tickets = 0
    for index, visit in enumerate(visits):
        device = visit.split.device
        if device not in latest:
            visit.inputs = [
                (position, slot)
                for position, item in enumerate(plan.inputs)
                for slot in item.slots
                if slot.device == device
            ]
        for copy in visit.split.copies:
            source = latest.get(copy.source_device)
            if source is None:
                return None
            n_tickets += _join(visits, source, index, copy, n_tickets if sends(copy.source_device, device) else None)
        latest[device] = index
    outputs: dict[Tensor, tuple[int, int]] = {}
    for tensor in plan.outputs:
        last = latest.get(plan.homes[root_of(tensor)])
        if last is None:
            return None
        if tensor.is_contiguous:
            outputs[tensor] = last, visits[last].read(tensor)
    return Itinerary(visits, outputs, n_tickets, overlaps=len(latest) == len(visits))


def _join(visits: list[Visit], source: int, target: int, copy: Copy, ticket: int | None) -> int:
    """Add a copy to the visits at its ends; return how many tickets it took."""
    if ticket is None:
        visits[target].carried.append((copy.slot, source, visits[source].read(copy.tensor)))
        return 0
    visits[source].onward.append((copy.tensor, copy.slot.device, ticket))
    visits[target].received.append((copy.slot, ticket))
    return 1
