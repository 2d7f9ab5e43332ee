"""Random inputs: the same for the same seed, in any element type and memory layout.

Belongs here: making of leaves. Must not be here: placing them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rpc_backend.graph import ElementType, Tensor, build
from rpc_backend.graph.element_types import BF16, F16, F32
from rpc_backend.interfaces import BufferUsage

Array = npt.NDArray[Any]
Extents = tuple[int, int, int, int]
Layout = Literal["packed", "padded", "sliced", "permuted", "transposed", "rolled"]

_HALF_FIELDS = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "MXFP4": (),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
"""Offsets in bytes of the float16 scales in a block. Source: ggml's block structs."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """An input and its bytes in the first and second round."""

    tensor: Tensor
    contents: tuple[bytes, bytes]
    usage: BufferUsage = BufferUsage.ANY


class Leaves:
    """Makes the inputs of one graph and keeps them in `made`."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.made: list[Leaf] = []

    def weight(self, kind: ElementType, ne: Extents, *, again: bool = False) -> Tensor:
        """Return a packed leaf in a buffer for weights; it is written once, or `again` in the second round."""
        first = self._content(kind, ne, None)
        second = self._content(kind, ne, None) if again else first
        return self._keep(kind, ne, first, second, BufferUsage.WEIGHTS)

    def tensor(
        self, kind: ElementType, ne: Extents, layout: Layout = "packed", between: tuple[float, float] | None = None
    ) -> Tensor:
        """Return a leaf, or a view of one, with extents `ne`.

        Numbers are normal, or uniform `between` two bounds; quantised blocks are random with small scales.
        """

        def make(stored: Extents) -> Tensor:
            first, second = (self._content(kind, stored, between) for _ in range(2))
            return self._keep(kind, stored, first, second, BufferUsage.ANY)

        return arranged(kind, ne, layout, make)

    def constant(self, kind: ElementType, ne: Extents, first: Array, second: Array | None = None) -> Tensor:
        """Return a packed leaf of given numbers; the second round has the first's if none are given."""
        contents = [as_bytes(kind, np.asarray(values)) for values in (first, first if second is None else second)]
        return self._keep(kind, ne, contents[0], contents[1], BufferUsage.ANY)

    def indices(self, kind: ElementType, ne: Extents, n_rows: int) -> Tensor:
        """Return row numbers below `n_rows`, distinct along the first axis while there are enough."""
        first, second = (self._rows(ne, n_rows) for _ in range(2))
        return self.constant(kind, ne, first, second)

    def _rows(self, ne: Extents, n_rows: int) -> Array:
        lists = [
            self._random.permutation(np.arange(max(n_rows, ne[0])) % n_rows)[: ne[0]] for _ in range(ne[1] * ne[2])
        ]
        return np.concatenate(lists)

    def _keep(self, kind: ElementType, ne: Extents, first: bytes, second: bytes, usage: BufferUsage) -> Tensor:
        tensor = build.leaf(kind, ne)
        self.made.append(Leaf(tensor, (first, second), usage))
        return tensor

    def _content(self, kind: ElementType, ne: Extents, between: tuple[float, float] | None) -> bytes:
        count = int(np.prod(ne))
        if kind.is_quantized:
            return self._blocks(kind, count // kind.block_size)
        if kind in (F32, F16, BF16):
            numbers = self._random.normal(size=count) if between is None else self._random.uniform(*between, count)
            return as_bytes(kind, numbers)
        low, high = between or (-100, 100)
        return as_bytes(kind, self._random.integers(int(low), int(high), count))

    def _blocks(self, kind: ElementType, n_blocks: int) -> bytes:
        blocks = self._random.integers(0, 256, (n_blocks, kind.block_nbytes), dtype=np.uint8)
        if kind.name == "MXFP4":
            blocks[:, 0] = self._random.integers(118, 124, n_blocks)  # the exponent of the scale, around 2^-8
        for offset in _HALF_FIELDS[kind.name]:
            scales = self._random.uniform(0.005, 0.02, n_blocks) * self._random.choice([-1, 1], n_blocks)
            blocks[:, offset : offset + 2] = scales.astype("<f2").view(np.uint8).reshape(n_blocks, 2)
        return blocks.tobytes()


def as_bytes(kind: ElementType, values: Array) -> bytes:
    """Return numbers as packed elements of a plain type."""
    if kind is BF16:
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    if kind.dtype is None:
        raise ValueError(f"numbers cannot be stored as {kind} here")
    return values.astype(kind.dtype).tobytes()


def arranged(kind: ElementType, ne: Extents, layout: Layout, make: Callable[[Extents], Tensor]) -> Tensor:
    """Return a tensor of extents `ne` over a leaf from `make` that lies in memory as `layout` says."""
    n0, n1, n2, n3 = ne
    pad = kind.block_size
    if layout == "padded":
        stored = make((n0 + pad, n1, n2, n3))
        return build.view(stored, ne, stored.nb)
    if layout == "sliced":
        stored = make((n0 + 2 * pad, n1 + 2, n2 + 1, n3))
        offset = kind.block_nbytes + stored.nb[1] + (stored.nb[2] if n2 > 1 else 0)
        return build.view(stored, ne, stored.nb, offset)
    if layout == "permuted":
        return build.permute(make((n0, n2, n1, n3)), 0, 2, 1, 3)
    if layout == "transposed":
        return build.transpose(make((n1, n0, n2, n3)))
    if layout == "rolled":
        return build.permute(make((n2, n0, n1, n3)), 2, 0, 1, 3)
    return make(ne)
