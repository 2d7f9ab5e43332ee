"""Passes 1 to 4: a device for every tensor.

Belongs here: which device computes what. Must not be here: copies, memory.

Source: the order of the passes is that of ggml's scheduler (`ggml_backend_sched_split_graph`). Memory decides: all
nodes that write into one tensor, and all views of it, are where that tensor is, so passes work on roots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rpc_backend.errors import ErrorContext, GraphError, PlanError, UnsupportedOpError
from rpc_backend.graph import Graph, Tensor
from rpc_backend.scheduler.plan.records import DeviceFacts, root_of

_WEIGHT_FIRST = frozenset({"MUL_MAT", "GET_ROWS"})
# The frequency factors of a rotation are small and shared by all layers: where they lie says nothing.
_NOT_PINNED_BY_LEAVES = frozenset({"ROPE"})


class Assignment:
    """The devices found so far. `homes` maps roots (computed tensors and placed leaves) to device indices.

    `nodes` are the nodes that move data, in order; `results` those with memory of their own; `fixed` is the
    placement the caller gave.
    """

    def __init__(self, graph: Graph, devices: Sequence[DeviceFacts], placement: Mapping[Tensor, int]) -> None:
        self.devices = devices
        self.nodes = [node for node in graph.nodes if node.op is not None and node.op.moves_data]
        self.results = {node for node in self.nodes if node.view_src is None}
        self.homes: dict[Tensor, int] = {}
        self.fixed = _checked_placement(devices, placement)
        self.readers: dict[Tensor, list[Tensor]] = {}
        for node in self.nodes:
            for source in node.sources:
                self.readers.setdefault(root_of(source), []).append(node)
        self.notes: list[str] = []
        self._check_written()

    def run(self) -> None:
        """Run the passes in order."""
        pinned = self.pin()
        self.spread_forwards()
        self.spread_backwards()
        self.pull(pinned)
        self.move_unsupported()

    def is_input(self, tensor: Tensor) -> bool:
        """Whether a root is a leaf that the user writes before each run."""
        return tensor not in self.fixed and tensor not in self.results

    def pin(self) -> set[Tensor]:
        """Pass 1: a node goes to the placed tensor it writes into, else to the weight or cache it reads."""
        self.homes.update(self.fixed)
        for node in self.nodes:
            root = root_of(node)
            if root not in self.homes:
                device = self._device_of_placed(node)
                if device is not None:
                    self.homes[root] = device
        return set(self.homes)

    def spread_forwards(self) -> None:
        """Pass 2a: a node that nothing pins goes to the device of its latest computed source."""
        position = {root_of(node): index for index, node in enumerate(self.nodes)}
        for node in self.nodes:
            root = root_of(node)
            if root in self.homes:
                continue
            known = [source for source in map(root_of, node.sources) if source in self.homes]
            if known:
                self.homes[root] = self.homes[max(known, key=lambda source: position.get(source, -1))]

    def spread_backwards(self) -> None:
        """Pass 2b: what is computed from inputs alone goes to its first reader, else to the first device."""
        for node in reversed(self.nodes):
            root = root_of(node)
            if root not in self.homes:
                readers = (root_of(reader) for reader in self.readers.get(root, ()))
                self.homes[root] = next((self.homes[reader] for reader in readers if reader in self.homes), 0)

    def pull(self, pinned: set[Tensor]) -> None:
        """Pass 2c: move a node to the one device that reads it if that saves bytes of copies.

        The norm at the start of a layer is the case: its source crosses to the next device in any case.
        """
        for node in reversed(self.nodes):
            if node in pinned or node.view_src is not None:
                continue
            targets = {self.homes[root_of(reader)] for reader in self.readers.get(node, ())}
            if len(targets) != 1 or self.homes[node] in targets:
                continue
            target = targets.pop()
            if self._bytes_to_bring(node, target) < node.nbytes:
                self.homes[node] = target

    # Pass 3 needs no work: a view has no home of its own, `root_of` gives its source's.

    def move_unsupported(self) -> None:
        """Pass 4: a node that its device does not support goes to the first device that does.

        Raises:
            UnsupportedOpError: none does, or the node must write where it is.
        """
        refused = {root_of(node): node for node in self._refused()}
        writers: dict[Tensor, list[Tensor]] = {root: [] for root in refused if root not in self.fixed}
        for node in self.nodes:
            if root_of(node) in writers:
                writers[root_of(node)].append(node)
        found = self._supporting(writers)
        for root, node in refused.items():
            home, target = self.homes[root], found.get(root)
            if target is None:
                raise self._unsupported(node, home)
            self.homes[root] = target
            self.notes.append(
                f"{node} runs on {self.devices[target].name}, because {self.devices[home].name} does not support it"
            )

    def _check_written(self) -> None:
        for node in self.nodes:
            if self.is_input(root_of(node)):
                raise GraphError(f"{node} writes into {root_of(node)}, which is placed on no device; place it")

    def _device_of_placed(self, node: Tensor) -> int | None:
        assert node.op is not None
        if node.op.name in _NOT_PINNED_BY_LEAVES:
            return None
        sources = [root for source in node.sources if (root := root_of(source)) in self.fixed]
        if not sources:
            return None
        weight = root_of(node.sources[0])
        if node.op.name in _WEIGHT_FIRST and weight in self.fixed:
            return self.fixed[weight]
        return self.fixed[sources[-1]]

    def _bytes_to_bring(self, node: Tensor, target: int) -> int:
        """Bytes of the sources of `node` that would have to be copied to `target` for it alone."""
        total = 0
        for source in dict.fromkeys(node.sources):
            root = root_of(source)
            if self.homes.get(root, target) != target and not self._read_there(source, target, node):
                total += source.nbytes
        return total

    def _read_there(self, source: Tensor, target: int, besides: Tensor) -> bool:
        return any(
            reader is not besides and self.homes[root_of(reader)] == target and source in reader.sources
            for reader in self.readers[root_of(source)]
        )

    def _refused(self) -> list[Tensor]:
        refused: list[Tensor] = []
        for index, device in enumerate(self.devices):
            mine = [node for node in self.nodes if self.homes[root_of(node)] == index]
            if mine and device.supports is not None:
                answers = device.supports(mine)
                refused.extend(node for node, supported in zip(mine, answers, strict=True) if not supported)
        return refused

    def _supporting(self, writers: Mapping[Tensor, Sequence[Tensor]]) -> dict[Tensor, int]:
        """Return for each root the first other device that supports all its nodes; one question per device."""
        found: dict[Tensor, int] = {}
        for index, device in enumerate(self.devices):
            roots = [root for root in writers if root not in found and self.homes[root] != index]
            nodes = [node for root in roots for node in writers[root]]
            answers = [True] * len(nodes) if device.supports is None or not nodes else device.supports(nodes)
            bad = {root_of(node) for node, supported in zip(nodes, answers, strict=True) if not supported}
            found.update((root, index) for root in roots if root not in bad)
        return found

    def _unsupported(self, node: Tensor, home: int) -> UnsupportedOpError:
        assert node.op is not None
        name = self.devices[home].name
        sources = ", ".join(f"{source.type.name} {list(source.ne)}" for source in node.sources)
        if root_of(node) in self.fixed:
            why = f"{name} does not support it and holds what it writes into"
        else:
            why = f"none of {', '.join(device.name for device in self.devices)} supports it"
        return UnsupportedOpError(
            f"{node} of ({sources}) cannot run: {why}", context=ErrorContext(device=name, op=node.op.name)
        )


def _checked_placement(devices: Sequence[DeviceFacts], placement: Mapping[Tensor, int]) -> dict[Tensor, int]:
    if not devices:
        raise PlanError("a graph needs at least one device")
    for tensor, device in placement.items():
        if not 0 <= device < len(devices):
            raise PlanError(f"{tensor} is placed on device {device}; there are {len(devices)}")
        if tensor.view_src is not None:
            raise GraphError(f"{tensor} is a view and lies where its source lies; place the source instead")
    return dict(placement)
