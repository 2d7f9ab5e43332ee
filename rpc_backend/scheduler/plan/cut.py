"""Passes 5 and 6: runs of nodes on one device, and what each needs from elsewhere.

Belongs here: splits, copies and inputs, before they have memory. Must not be here: offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rpc_backend.graph import Tensor
from rpc_backend.scheduler.plan.assign import Assignment
from rpc_backend.scheduler.plan.records import root_of


@dataclass(eq=False, slots=True)
class Arrival:
    """A tensor that comes to a device from another one."""

    tensor: Tensor
    source_device: int
    device: int


@dataclass(slots=True)
class Draft:
    """A split without memory. `foreign` are the arrivals its nodes read, its own and those of earlier splits."""

    device: int
    nodes: list[Tensor] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    foreign: dict[Tensor, Arrival] = field(default_factory=dict)


def cut(assignment: Assignment) -> list[Draft]:
    """Pass 5: cut where the device changes; the order of nodes stays."""
    drafts: list[Draft] = []
    for node in assignment.nodes:
        device = assignment.homes[root_of(node)]
        if not drafts or drafts[-1].device != device:
            drafts.append(Draft(device))
        drafts[-1].nodes.append(node)
    return drafts


def bring_inputs(assignment: Assignment, drafts: list[Draft]) -> dict[Tensor, list[int]]:
    """Pass 6: add the arrivals of each split, and return the devices that read each input of the user.

    An input is written to every device that reads it, so it never arrives by a copy. Anything else is copied
    once per device and run; only if a node has written into its memory since, it is copied again.
    """
    inputs: dict[Tensor, list[int]] = {}
    versions: dict[Tensor, int] = {}
    present: dict[tuple[Tensor, int, int], Arrival] = {}
    for draft in drafts:
        for node in draft.nodes:
            for source in node.sources:
                _bring(assignment, draft, source, inputs, versions, present)
            root = root_of(node)
            versions[root] = versions.get(root, 0) + 1
    return inputs


def _bring(
    assignment: Assignment,
    draft: Draft,
    source: Tensor,
    inputs: dict[Tensor, list[int]],
    versions: dict[Tensor, int],
    present: dict[tuple[Tensor, int, int], Arrival],
) -> None:
    root = root_of(source)
    if assignment.is_input(root):
        devices = inputs.setdefault(root, [])
        if draft.device not in devices:
            devices.append(draft.device)
        return
    home = assignment.homes[root]
    if home == draft.device:
        return
    key = (source, draft.device, versions.get(root, 0))
    if key not in present:
        present[key] = Arrival(source, home, draft.device)
        draft.arrivals.append(present[key])
    draft.foreign[source] = present[key]
