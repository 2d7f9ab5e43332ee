"""Rows of a plan before their addresses are known.

Belongs here: what a lowering says about one kernel call. Must not be here: which kernels an operation needs
(`lowering`), or the blocks that kernels read (`layout`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rpc_backend.plugin_api import Tensor, host_address
from rpc_backend_numba import layout


@dataclass(frozen=True, slots=True)
class Shared:
    """Memory that one row fills and later rows read; `block` is its number in the plan."""

    block: int


@dataclass(frozen=True, slots=True)
class Private:
    """The working memory of each thread, whose parameter is followed by one for the distance between threads."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Counters by which threads claim work: a cache line for each, all 0 between runs. A row's own."""


@dataclass(frozen=True, slots=True)
class Code:
    """The address of a kernel's machine code."""

    kernel: str


Address = int | Shared
Param = int | float | Shared | Private | Claims | Code


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as a kernel sees it: where it lies, extents, strides in bytes, element type."""

    address: Address
    ne: tuple[int, int, int, int]
    nb: tuple[int, int, int, int]
    type_code: int = 0

    @classmethod
    def of(cls, tensor: Tensor) -> Operand:
        """Describe a placed tensor."""
        return cls(host_address(tensor), tensor.ne, tensor.nb, tensor.type.code)

    def part(self, axis: int, first: int, last: int) -> Operand:
        """Describe the places [first, last) along an axis, of a tensor that has an address."""
        assert isinstance(self.address, int)
        ne = tuple(last - first if index == axis else count for index, count in enumerate(self.ne))
        return replace(self, address=self.address + first * self.nb[axis], ne=ne)

    def words(self, address: int) -> list[int]:
        return [address, *self.ne, *self.nb, self.type_code]


@dataclass(frozen=True, slots=True)
class Parts:
    """How threads share a range of bytes: of `count` items of `nbytes`, thread t of n has those from count * t // n on.

    The last item may be shorter, and items past the end of the range be none.
    """

    count: int
    nbytes: int

    def of(self, thread: int, n_threads: int) -> tuple[int, int]:
        """Return the first byte of a thread, and the end of its bytes."""
        return (
            self.count * thread // n_threads * self.nbytes,
            self.count * (thread + 1) // n_threads * self.nbytes,
        )


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that a row reads or writes: from an address, or of a shared block.

    With `parts` each thread touches its own only, without them any thread may touch all.
    """

    start: Address
    nbytes: int
    parts: Parts | None = None


@dataclass(slots=True)
class Row:
    """One kernel call. `operands` has the result first; `reads` and `writes` say what it touches.

    `node` is the position of the node that an error is reported for, `nodes` are those of all that it computes, none
    if it only makes something ready.
    """

    kernel: str
    node: int
    operands: Sequence[Operand | None]
    params: Sequence[Param]
    reads: list[Span]
    writes: list[Span]
    private_nbytes: int = 0
    nodes: tuple[int, ...] = ()
    codes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.codes = [self.kernel, *(param.kernel for param in self.params if isinstance(param, Code))]


def word_of(value: int | float) -> int:
    """Return the int64 that stands for a parameter: itself, or the bits of a float64."""
    if isinstance(value, float):
        return int(struct.unpack("<q", struct.pack("<d", value))[0])
    return value


NO_OPERAND = [0] * layout.TENSOR_WORDS
