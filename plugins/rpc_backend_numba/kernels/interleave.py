"""Rows of quantised weights interleaved, and put back.

Belongs here: the order of bytes of 16 interleaved rows (`formats.TILE_ROWS`). Must not be here: what the bytes mean
(`tile_formats`), or when rows are interleaved (`weights`).

`interleave_<format>` and `separate_<format>(source, row_stride, n_rows, n_blocks, target, spare)` go from rows
`row_stride` bytes apart to interleaved ones and back; of fewer than 16 rows the last one fills the other places.
`pick_<format>(source, row, n_blocks, target)` takes one row out. All are given blocks per row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from rpc_backend_numba.atomics import code_call
from rpc_backend_numba.formats import FORMATS, TILE_ROWS, Run
from rpc_backend_numba.kernels.access import address, extent, param, share, stride
from rpc_backend_numba.simd import helper, load, store, vector
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.simd.words import load_four_words, load_word

CODE, N_BLOCKS, ROW_NBYTES, SCRATCH, SCRATCH_STRIDE = 0, 1, 2, 3, 4

_WORDS = {1: types.uint8, 2: types.uint16, 4: types.uint32}
_COPIED = vector(types.uint8, TILE_ROWS)
_call_rows = code_call(6)


def _for_each_run(format_name: str, make: Callable[[Run], Any]) -> Any:
    """Return a function that calls what `make` gives for each run of words of a block."""
    together = None
    for run in FORMATS[format_name].runs:
        made = make(run)
        together = made if together is None else _both(together, made)
    return together


def _both(first: Any, second: Any) -> Any:
    @helper
    def both(source, a, b, target):
        first(source, a, b, target)
        second(source, a, b, target)

    return both


def _interleave_run(run: Run) -> Any:
    offset, count, nbytes = run.offset, run.count, run.nbytes
    one, four = load_word(TILE_ROWS, _WORDS[nbytes]), load_four_words(TILE_ROWS)
    fours = count // 4 if nbytes == 4 else 0
    first, step = TILE_ROWS * run.place, TILE_ROWS * run.step

    @helper
    def move(source, row_stride, last, target):
        place = target + first
        for i in range(fours):
            a, b, c, d = four(source + offset + 16 * i, row_stride, last)
            store(place, a)
            store(place + step, b)
            store(place + 2 * step, c)
            store(place + 3 * step, d)
            place += 4 * step
        for i in range(4 * fours, count):
            store(place, one(source + offset + nbytes * i, row_stride, last))
            place += step

    return move


def _pick_run(run: Run) -> Any:
    kind, offset, count, nbytes = _WORDS[run.nbytes], run.offset, run.count, run.nbytes
    first, step = TILE_ROWS * run.place, TILE_ROWS * run.step

    @helper
    def move(source, row, unused, target):
        for i in range(count):
            store(target + offset + nbytes * i, load(kind, source + first + step * i + nbytes * row))

    return move


def make_interleave(layer: Layer, format_name: str) -> Any:
    """Return the kernel `interleave` of a format."""
    move, nbytes = _for_each_run(format_name, _interleave_run), FORMATS[format_name].block_nbytes

    def interleave(source, row_stride, n_rows, n_blocks, target, spare):
        for block in range(n_blocks):
            move(source + nbytes * block, row_stride, n_rows - 1, target + TILE_ROWS * nbytes * block)

    return interleave


def make_separate(layer: Layer, format_name: str) -> Any:
    """Return the kernel `separate` of a format."""
    move, nbytes = _for_each_run(format_name, _pick_run), FORMATS[format_name].block_nbytes

    def separate(source, row_stride, n_rows, n_blocks, target, spare):
        for block in range(n_blocks):
            for row in range(n_rows):
                move(source + TILE_ROWS * nbytes * block, row, 0, target + row * row_stride + nbytes * block)

    return separate


def make_pick(layer: Layer, format_name: str) -> Any:
    """Return the kernel `pick` of a format."""
    move, nbytes = _for_each_run(format_name, _pick_run), FORMATS[format_name].block_nbytes

    def pick(source, row, n_blocks, target):
        for block in range(n_blocks):
            move(source + TILE_ROWS * nbytes * block, row, 0, target + nbytes * block)

    return pick


def make_rearrange(layer: Layer) -> Any:
    """Return the kernel that interleaves or separates whole groups of rows, its code a parameter.

    Tensor 1 is the source [bytes, groups, matrices, 1], tensor 0 the target; both may be the same memory.
    """

    def rearrange(args, ith, nth):
        n_groups, nbytes = extent(args, 1, 1), extent(args, 1, 0)
        scratch = param(args, SCRATCH) + ith * param(args, SCRATCH_STRIDE)
        first, last = share(n_groups * extent(args, 1, 2), ith, nth)
        for item in range(first, last):
            matrix, group = item // n_groups, item % n_groups
            source = address(args, 1) + matrix * stride(args, 1, 2) + group * stride(args, 1, 1)
            _call_rows(param(args, CODE), source, param(args, ROW_NBYTES), TILE_ROWS, param(args, N_BLOCKS), scratch, 0)
            target = address(args, 0) + matrix * stride(args, 0, 2) + group * stride(args, 0, 1)
            for at in range(0, nbytes, TILE_ROWS):
                store(target + at, load(_COPIED, scratch + at))

    return rearrange
