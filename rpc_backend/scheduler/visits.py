"""What enters and leaves each split of a plan, so that a whole visit to a device can be asked for at once.

Belongs here: a pure function of a plan. Must not be here: devices, memory, or how visits are made (`pipeline`).

A copy between devices has two ways. Carried: the visit at its source gives the bytes to the host, which gives them to
the visit at its target. Direct: the source's device sends them to the target's, which recognises them by a ticket.
What a run hands over to a later one always goes that way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rpc_backend.graph import Tensor
from rpc_backend.scheduler.handover import NO_HANDOVER, Handover
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
    `gives` and `takes` are the (device, ticket) at which a tensor of another run is handed over.
    """

    visits: list[Visit]
    outputs: dict[Tensor, tuple[int, int]] = field(default_factory=dict)
    n_tickets: int = 0
    overlaps: bool = True
    gives: dict[Tensor, tuple[int, int]] = field(default_factory=dict)
    takes: dict[Tensor, tuple[int, int]] = field(default_factory=dict)

    def add_ticket(self) -> int:
        """Return the number of one more ticket."""
        self.n_tickets += 1
        return self.n_tickets - 1


def plan_visits(
    plan: GraphPlan, sends: Callable[[int, int], bool], handover: Handover = NO_HANDOVER
) -> Itinerary | None:
    """Return the visits that a plan takes; `sends` says whether one device can send to another.

    What a later visit or the user needs is read at the end of the last visit before, as it would be if all was done
    in order. None = something is needed of a device that was not visited before, or something to hand over has no way:
    the plan runs step by step only. An output with gaps between its elements is left out, one that is given is not
    read.
    """
    itinerary = Itinerary([Visit(split) for split in plan.splits])
    latest: dict[int, int] = {}
    for index, visit in enumerate(itinerary.visits):
        device = visit.split.device
        if device not in latest:
            _enter(itinerary, visit, plan, handover)
        for copy in visit.split.copies:
            source = latest.get(copy.source_device)
            if source is None:
                return None
            _join(itinerary, source, index, copy, is_direct=sends(copy.source_device, device))
        latest[device] = index
    itinerary.overlaps = len(latest) == len(itinerary.visits)
    for tensor in plan.outputs:
        home = plan.homes[root_of(tensor)]
        last, target = latest.get(home), handover.gives.get(tensor)
        if last is None or (target is not None and not sends(home, target)):
            return None
        visit = itinerary.visits[last]
        if target is not None:
            itinerary.gives[tensor] = target, itinerary.add_ticket()
            visit.onward.append((tensor, *itinerary.gives[tensor]))
        elif tensor.is_contiguous:
            itinerary.outputs[tensor] = last, visit.read(tensor)
    return itinerary if set(itinerary.takes) == set(handover.takes) else None


def _enter(itinerary: Itinerary, visit: Visit, plan: GraphPlan, handover: Handover) -> None:
    """Add what the first visit to a device is given from outside; a taken tensor, only if no other device reads it."""
    for position, item in enumerate(plan.inputs):
        for slot in item.slots:
            if slot.device != visit.split.device:
                continue
            if item.tensor not in handover.takes:
                visit.inputs.append((position, slot))
            elif len(item.slots) == 1:
                itinerary.takes[item.tensor] = slot.device, itinerary.add_ticket()
                visit.received.append((slot, itinerary.takes[item.tensor][1]))


def _join(itinerary: Itinerary, source: int, target: int, copy: Copy, *, is_direct: bool) -> None:
    """Add a copy to the visits at its ends."""
    sender, receiver = itinerary.visits[source], itinerary.visits[target]
    if is_direct:
        ticket = itinerary.add_ticket()
        sender.onward.append((copy.tensor, copy.slot.device, ticket))
        receiver.received.append((copy.slot, ticket))
    else:
        receiver.carried.append((copy.slot, source, sender.read(copy.tensor)))
