"""Pass 7: memory for what a device computes, receives and is given.

Belongs here: lifetimes and offsets in one compute buffer per device. Must not be here: the buffers.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence

from rpc_backend.errors import ErrorContext, OutOfMemoryError
from rpc_backend.graph import Tensor
from rpc_backend.scheduler.plan.assign import Assignment
from rpc_backend.scheduler.plan.cut import Arrival, Draft
from rpc_backend.scheduler.plan.records import Slot, bare_leaf, root_of
from rpc_backend.text import exact_nbytes

Key = Tensor | Arrival | tuple[Tensor, int]
"""A thing that takes memory: a computed tensor, an arrival, or an input on a device."""


class FreeList:
    """Offsets of one buffer: the smallest hole that fits, of equal ones the first; else grow at the end.

    All offsets are multiples of `alignment`; `nbytes` is the most that was ever in use.
    """

    def __init__(self, alignment: int) -> None:
        self._alignment = alignment
        self._holes: list[tuple[int, int]] = []
        self._end = 0
        self.nbytes = 0

    def take(self, nbytes: int) -> int:
        """Return the offset of `nbytes` free bytes, which are not free any more."""
        size = self._rounded(nbytes)
        fitting = [hole for hole in self._holes if hole[1] >= size]
        if fitting:
            offset, room = min(fitting, key=lambda hole: (hole[1], hole[0]))
            self._holes.remove((offset, room))
            if room > size:
                bisect.insort(self._holes, (offset + size, room - size))
            return offset
        if self._holes and sum(self._holes[-1]) == self._end:
            offset, _ = self._holes.pop()
        else:
            offset = self._end
        self._end = offset + size
        self.nbytes = max(self.nbytes, self._end)
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        """Make bytes that were taken free again."""
        size = self._rounded(nbytes)
        index = bisect.bisect(self._holes, (offset, size))
        if index < len(self._holes) and self._holes[index][0] == offset + size:
            size += self._holes.pop(index)[1]
        if index > 0 and sum(self._holes[index - 1]) == offset:
            index -= 1
            before, room = self._holes.pop(index)
            offset, size = before, size + room
        self._holes.insert(index, (offset, size))

    def _rounded(self, nbytes: int) -> int:
        return -(-max(nbytes, 1) // self._alignment) * self._alignment


class Allocation:
    """Slots for everything of a plan. Inputs and outputs keep theirs to the end."""

    def __init__(
        self,
        assignment: Assignment,
        drafts: Sequence[Draft],
        inputs: Mapping[Tensor, Sequence[int]],
        outputs: Iterable[Tensor],
    ) -> None:
        self._assignment = assignment
        self._drafts = drafts
        self._inputs = [(tensor, device) for tensor, devices in inputs.items() for device in devices]
        self._kept = {root_of(output) for output in outputs}
        self._free = [FreeList(device.alignment) for device in assignment.devices]
        self.slots: dict[Key, Slot] = {}

    def run(self) -> tuple[int, ...]:
        """Give every tensor its slot, and return the size of each device's compute buffer.

        Raises:
            OutOfMemoryError: a compute buffer is larger than its device allows any buffer to be.
        """
        sizes = self._sizes()
        for key in self._inputs:
            self._take(key, *key, sizes)
        ends = iter(self._ends())
        for draft in self._drafts:
            for arrival in draft.arrivals:
                self._take(arrival, arrival.tensor, draft.device, sizes)
            self._give(next(ends))
            for node in draft.nodes:
                if node.view_src is None:
                    self._take(node, node, draft.device, sizes)
                self._give(next(ends))
        self._check_limits()
        return tuple(free.nbytes for free in self._free)

    def _sizes(self) -> dict[Key, int]:
        """Bytes to reserve for everything; each device is asked once."""
        wanted: list[list[tuple[Key, Tensor]]] = [[] for _ in self._free]
        for tensor, device in self._inputs:
            wanted[device].append(((tensor, device), bare_leaf(tensor)))
        for draft in self._drafts:
            wanted[draft.device].extend((arrival, bare_leaf(arrival.tensor)) for arrival in draft.arrivals)
            wanted[draft.device].extend((node, node) for node in draft.nodes if node.view_src is None)
        sizes: dict[Key, int] = {}
        for device, items in zip(self._assignment.devices, wanted, strict=True):
            tensors = [tensor for _, tensor in items]
            own = [tensor.nbytes for tensor in tensors]
            asked = own if device.alloc_sizes is None or not items else device.alloc_sizes(tensors)
            for (key, _), least, nbytes in zip(items, own, asked, strict=True):
                sizes[key] = max(least, nbytes)
        return sizes

    def _ends(self) -> list[list[Key]]:
        """Say for each moment what nobody needs after it. A split has one moment for its copies and one per node."""
        last: dict[Key, int] = {}
        n_moments = 0
        for draft in self._drafts:
            for arrival in draft.arrivals:
                last[root_of(arrival.tensor)] = n_moments
            for moment, node in enumerate(draft.nodes, n_moments + 1):
                last[root_of(node)] = moment
                for source in node.sources:
                    last[draft.foreign.get(source) or root_of(source)] = moment
            n_moments += 1 + len(draft.nodes)
        ends: list[list[Key]] = [[] for _ in range(n_moments)]
        for key, moment in last.items():
            if isinstance(key, Arrival) or (key in self._assignment.results and key not in self._kept):
                ends[moment].append(key)
        return ends

    def _take(self, key: Key, tensor: Tensor, device: int, sizes: Mapping[Key, int]) -> None:
        nbytes = sizes[key]
        self.slots[key] = Slot(tensor, device, self._free[device].take(nbytes), nbytes)

    def _give(self, keys: Iterable[Key]) -> None:
        for key in keys:
            slot = self.slots[key]
            self._free[slot.device].give(slot.offset, slot.nbytes)

    def _check_limits(self) -> None:
        for free, device in zip(self._free, self._assignment.devices, strict=True):
            if free.nbytes > device.max_buffer_nbytes:
                raise OutOfMemoryError(
                    f"the graph needs a compute buffer of {exact_nbytes(free.nbytes)} on {device.name}, which allows "
                    f"{exact_nbytes(device.max_buffer_nbytes)}; use smaller batches",
                    context=ErrorContext(device=device.name),
                )
