"""When rows run: in stages, between which all threads meet.

Belongs here: which rows depend on which, their order, and the memory of shared blocks. Must not be here: what rows
mean (`lowering`).

Rows of one stage need nothing of each other, or each thread needs only what it made itself: so the products that share
an input come to lie in one stage wherever a graph has them, and a chain of operations element by element takes one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rpc_backend_numba.arguments import Parts, Row, Shared, Span

_ALIGNMENT = 64
_BLOCKS = 1 << 62
"""Shared blocks are taken to lie from here on, each apart, until they are placed."""

_Numbers = npt.NDArray[np.int64]
_Divided = tuple[Parts, int, int]
"""How threads share a range, its start and its end."""


def stages_of(rows: Sequence[Row], block_nbytes: Sequence[int], n_threads: int) -> list[int]:
    """Return the stage of each row: the first in which all that it depends on is done.

    A row depends on an earlier one that writes what it touches, or touches what it writes. One thread needs no stages:
    each row has its own.
    """
    if n_threads == 1:
        return list(range(len(rows)))
    known = _Accesses(rows, block_nbytes, n_threads)
    return [known.next_stage() for _ in rows]


class _Accesses:
    """All ranges that rows touch, row by row, and the stages of the rows so far."""

    def __init__(self, rows: Sequence[Row], block_nbytes: Sequence[int], n_threads: int) -> None:
        self._n_threads = n_threads
        self._first = [0]
        spans: list[Span] = []
        for row in rows:
            spans += (*row.reads, *row.writes)
            self._first.append(len(spans))
        blocks = _BLOCKS + np.cumsum([0, *block_nbytes])
        self._parts = [span.parts for span in spans]
        self._start: _Numbers = np.array([_start(span, blocks) for span in spans], np.int64)
        self._end: _Numbers = self._start + np.array([span.nbytes for span in spans], np.int64)
        self._is_write = np.array(
            [written for row in rows for written in (*[False] * len(row.reads), *[True] * len(row.writes))], np.bool_
        )
        self._stage: _Numbers = np.zeros(len(spans), np.int64)
        self._row = 0

    def next_stage(self) -> int:
        """Return the stage of the next row."""
        first, last = self._first[self._row], self._first[self._row + 1]
        stage = max((self._least_stage(index, first) for index in range(first, last)), default=0)
        self._stage[first:last] = stage
        self._row += 1
        return stage

    def _least_stage(self, index: int, before: int) -> int:
        """The first stage in which a range can be touched, because of those `before` it."""
        touched = (self._start[:before] < self._end[index]) & (self._end[:before] > self._start[index])
        if not self._is_write[index]:
            touched &= self._is_write[:before]
        others = np.flatnonzero(touched)
        return max((int(self._stage[other]) + self._needs_wait(index, int(other)) for other in others), default=0)

    def _needs_wait(self, index: int, other: int) -> bool:
        mine, theirs = self._parts[index], self._parts[other]
        if mine is None or theirs is None:
            return True
        some = (mine, int(self._start[index]), int(self._end[index]))
        others = (theirs, int(self._start[other]), int(self._end[other]))
        return not _each_has_its_own(some, others, self._n_threads)


def _start(span: Span, blocks: _Numbers) -> int:
    return int(blocks[span.start.block]) if isinstance(span.start, Shared) else span.start


def _each_has_its_own(some: _Divided, others: _Divided, n_threads: int) -> bool:
    """Whether every thread's part of a range meets no other thread's part of the other range."""
    if some == others:
        return True
    for thread in range(n_threads):
        start, end = _range_of(some, thread, n_threads)
        start, end = max(start, others[1]), min(end, others[2])
        first, last = _range_of(others, thread, n_threads)
        if start < end and not first <= start < end <= last:
            return False
    return True


def _range_of(shared: _Divided, thread: int, n_threads: int) -> tuple[int, int]:
    parts, start, end = shared
    first, last = parts.of(thread, n_threads)
    return start + first, min(start + last, end)


def place_blocks(rows: Sequence[Row], stages: Sequence[int], block_nbytes: Sequence[int]) -> tuple[list[int], int]:
    """Give each shared block an offset, so that blocks in use at the same time lie apart.

    Returns the offsets and the bytes of all. A block is in use from the stage that writes it to the last that reads it.
    """
    first, last = _lifetimes(rows, stages)
    offsets = [0] * len(block_nbytes)
    live: list[tuple[int, int, int]] = []  # offset, end, last stage
    total = 0
    for block in sorted(first, key=lambda item: first[item]):
        live = sorted(entry for entry in live if entry[2] >= first[block])
        size = -(-block_nbytes[block] // _ALIGNMENT) * _ALIGNMENT
        offset = 0
        for start, end, _ in live:
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[block] = offset
        live.append((offset, offset + size, last[block]))
        total = max(total, offset + size)
    return offsets, total


def _lifetimes(rows: Sequence[Row], stages: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for row, stage in zip(rows, stages, strict=True):
        for span in (*row.reads, *row.writes):
            if isinstance(span.start, Shared):
                block = span.start.block
                first[block] = min(stage, first.get(block, stage))
                last[block] = max(stage, last.get(block, stage))
    return first, last
