"""Rows with addresses: the memory that the walker and the kernels read.

Belongs here: placing what a builder collected. Must not be here: what rows mean (`lowering`), running them (`plan`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rpc_backend_numba import layout
from rpc_backend_numba.arguments import NO_OPERAND, Claims, Code, Param, Private, Row, Shared, word_of
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.library import KernelLibrary
from rpc_backend_numba.stages import place_blocks, stages_of

_ALIGNMENT = 64
Words = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Call:
    """One row of a table: the kernel and its code, the address of its argument block, positions of nodes.

    `nodes` are those that it computes; none if it makes something ready for the node at `position`. `waits` says
    whether all threads meet before it.
    """

    kernel: str
    code: int
    arguments: int
    position: int
    nodes: tuple[int, ...]
    waits: bool


class Table:
    """The table of a plan with all memory it points to, tensors excepted.

    `rows` is what the walker reads; `error` the plan's error block.
    """

    def __init__(self, builder: PlanBuilder, library: KernelLibrary, n_threads: int) -> None:
        stages = stages_of(builder.rows, builder.block_nbytes, n_threads)
        order = sorted(range(len(stages)), key=lambda index: stages[index])
        rows, stages = [builder.rows[index] for index in order], [stages[index] for index in order]
        self._builder_rows = rows
        self.error: Words = np.zeros(layout.ERROR_WORDS, np.int64)
        self._constants = builder.constants
        self._codes = library.addresses(code for row in rows for code in row.codes)
        self._offsets, shared_nbytes = place_blocks(rows, stages, builder.block_nbytes)
        self._shared, self._shared_start = _aligned(shared_nbytes)
        self._private_nbytes = _whole_lines(max((row.private_nbytes for row in rows), default=0))
        self._private, self._private_start = _aligned(self._private_nbytes * n_threads)
        self._claims_nbytes = layout.CACHE_LINE * n_threads
        n_claims = sum(isinstance(param, Claims) for row in rows for param in row.params)
        self._claims, claims_start = _aligned(self._claims_nbytes * n_claims)
        self._claims[:] = 0
        self._next_claims = claims_start
        self._arguments: Words = np.array([self._argument_block(row) for row in rows], np.int64)
        self.rows: Words = self._table(rows, stages)

    def calls(self) -> list[Call]:
        """Return what the rows are, in the order in which they run."""
        return [
            Call(
                row.kernel,
                int(words[layout.ROW_KERNEL]),
                int(words[layout.ROW_ARGUMENTS]),
                row.node,
                row.nodes,
                bool(words[layout.ROW_WAITS]),
            )
            for row, words in zip(self._builder_rows, self.rows, strict=True)
        ]

    def _table(self, rows: Sequence[Row], stages: Sequence[int]) -> Words:
        table: Words = np.zeros((len(rows), layout.ROW_WORDS), np.int64)
        start, step = self._arguments.ctypes.data, layout.ARGUMENT_WORDS * layout.WORD
        table[:, layout.ROW_KERNEL] = [self._codes[row.kernel] for row in rows]
        table[:, layout.ROW_ARGUMENTS] = start + step * np.arange(len(rows), dtype=np.int64)
        table[1:, layout.ROW_WAITS] = np.diff(stages) > 0
        return table

    def _argument_block(self, row: Row) -> list[int]:
        operands: list[int] = []
        for item in row.operands:
            operands += item.words(self._address(item.address)) if item else NO_OPERAND
        params = [word for param in row.params for word in self._param(param)]
        assert len(row.operands) <= layout.MAX_TENSORS, row.kernel
        assert len(params) <= layout.MAX_PARAMS, row.kernel
        operands += [0] * (layout.MAX_TENSORS * layout.TENSOR_WORDS - len(operands))
        params += [0] * (layout.MAX_PARAMS - len(params))
        return [row.node, self.error.ctypes.data, *operands, *params]

    def _address(self, address: int | Shared) -> int:
        if isinstance(address, Shared):
            return self._shared_start + self._offsets[address.block]
        return address

    def _param(self, param: Param) -> Sequence[int]:
        if isinstance(param, Shared):
            return (self._address(param),)
        if isinstance(param, Private):
            return (self._private_start, self._private_nbytes)
        if isinstance(param, Claims):
            self._next_claims += self._claims_nbytes
            return (self._next_claims - self._claims_nbytes,)
        if isinstance(param, Code):
            return (self._codes[param.kernel],)
        return (word_of(param),)


def _whole_lines(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _aligned(nbytes: int) -> tuple[npt.NDArray[np.uint8], int]:
    """Return memory of at least `nbytes`, and its first aligned address."""
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    return memory, _whole_lines(memory.ctypes.data)
