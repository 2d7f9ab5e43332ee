"""What a graph plan is made of: plain data.

Belongs here: the records and how they print. Must not be here: how a plan is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rpc_backend.graph import Tensor
from rpc_backend.text import human_nbytes, render_table


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a plan must know of a device; sizes in bytes.

    `supports` and `alloc_sizes` answer for many nodes at once, each question being a round trip to a remote
    device; None = every node is supported, and a tensor takes its own extent.
    """

    name: str
    alignment: int = 64
    max_buffer_nbytes: int = 2**62
    supports: Callable[[Sequence[Tensor]], Sequence[bool]] | None = None
    alloc_sizes: Callable[[Sequence[Tensor]], Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of a device's compute buffer that holds one tensor for a while. Offset and size in bytes."""

    tensor: Tensor
    device: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Bring `tensor`, which lies on `source_device`, to `slot` on another device, its strides kept."""

    tensor: Tensor
    source_device: int
    slot: Slot


@dataclass(frozen=True, slots=True)
class Input:
    """A leaf that the user writes before a run, and where: one slot on each device that reads it."""

    tensor: Tensor
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """Consecutive nodes of one device. `copies` come first; `foreign` says where a node finds what lies elsewhere.

    `nodes` has no nodes that only describe memory: a view is where its source is.
    """

    device: int
    nodes: tuple[Tensor, ...]
    copies: tuple[Copy, ...]
    foreign: Mapping[Tensor, Slot]


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """How a graph runs over devices: splits in order, inputs, and the place of every computed tensor.

    `homes` gives the device of every tensor that is no view (an input's is its first); `results` the slots of
    computed ones. `compute_nbytes` is the size of each device's compute buffer.
    """

    devices: tuple[str, ...]
    splits: tuple[Split, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Tensor, ...]
    homes: Mapping[Tensor, int]
    results: Mapping[Tensor, Slot]
    compute_nbytes: tuple[int, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def copies(self) -> tuple[Copy, ...]:
        return tuple(copy for split in self.splits for copy in split.copies)

    def rows(self) -> list[list[str]]:
        """Return the splits as a table of text, headings first."""
        table = [["split", "device", "nodes", "first", "last", "copies", "copied"]]
        for index, split in enumerate(self.splits):
            copied = human_nbytes(sum(copy.tensor.nbytes for copy in split.copies))
            ends = (_node_text(split.nodes[0]), _node_text(split.nodes[-1]))
            name = self.devices[split.device]
            table.append([str(index), name, str(len(split.nodes)), *ends, str(len(split.copies)), copied])
        return table

    def describe(self) -> str:
        """Return the table, the compute memory per device and the notes as plain text."""
        pairs = zip(self.devices, self.compute_nbytes, strict=True)
        memory = [f"{name}: compute buffer {human_nbytes(nbytes)}" for name, nbytes in pairs]
        return "\n".join([render_table(self.rows()), *memory, *(f"note: {note}" for note in self.notes)])


def root_of(tensor: Tensor) -> Tensor:
    """Return the tensor whose memory this one lies in: itself, unless it is a view."""
    return tensor if tensor.view_src is None else tensor.view_src


def bare_leaf(tensor: Tensor) -> Tensor:
    """Return a leaf of the same element type, extents and strides, in no memory."""
    return Tensor(tensor.type, tensor.ne, nb=tensor.nb, name=tensor.name)


def _node_text(node: Tensor) -> str:
    op = node.op.name if node.op else "leaf"
    return f"{op} {node.name}" if node.name else op
