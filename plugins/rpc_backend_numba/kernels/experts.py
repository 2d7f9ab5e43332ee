"""MUL_MAT_ID and ADD_ID: products with matrices, and sums with rows, that ids name.

Belongs here: which rows of activations each matrix meets, and the split over threads. Must not be here: arithmetic
(`product_rows`, `product_tiles`), or layouts of activations (`product_inputs`).

A pair is one id of one token, numbered token by token. Pairs are grouped by the matrix they name, so that each
matrix passes once for all its rows of activations. Rows of activations lie by themselves, as `product_inputs` leaves
them; those of a matrix with many are copied together in units of four columns.

A block of groups holds int64 words: per matrix the number of pairs before its own, the number of all pairs, per
matrix the column where its units begin, then the pairs in the order of their matrices.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.atomics import code_call
from rpc_backend_numba.formats import INPUT_NBYTES, RESULT_COLUMNS, SPARE_NBYTES, TILE_ROWS, UNIT_COLUMNS
from rpc_backend_numba.kernels.access import (
    address,
    element_code,
    extent,
    param,
    report_index,
    row_address,
    share,
    split_row,
    stride,
)
from rpc_backend_numba.kernels.copies import copy_bytes
from rpc_backend_numba.kernels.elements import make_any_element
from rpc_backend_numba.simd import helper, load, load_at, store, store_at, vector
from rpc_backend_numba.simd.layer import Layer

_I32, _I64, _F32 = types.int32, types.int64, types.float32
_CELL = vector(types.uint8, INPUT_NBYTES)

_CHUNK_COLUMNS = RESULT_COLUMNS // 2
"""Columns whose activations stay near the core while rows of weights pass by; a last chunk has less than twice that."""
_ROWS_PER_ITEM = 8
_RESULT_NBYTES = 4 * TILE_ROWS * RESULT_COLUMNS
_call_rows, _call_panel, _call_tile = code_call(9), code_call(6), code_call(9)


@helper
def _id_of(args, tensor, pair):
    """The id of a pair; `tensor` holds the ids."""
    n_used = extent(args, tensor, 0)
    token, slot = pair // n_used, pair % n_used
    place = address(args, tensor) + slot * stride(args, tensor, 0) + token * stride(args, tensor, 1)
    return _I64(load(_I32, place))


@helper
def _starts(groups, n_matrices, matrix):
    """The first pair of a matrix in the order, how many it has, and where its units begin."""
    first = load_at(_I64, groups, matrix)
    return first, load_at(_I64, groups, matrix + 1) - first, load_at(_I64, groups, n_matrices + 1 + matrix)


GROUPS, N_MATRICES, LEAST_TOGETHER = 0, 1, 2
"""Parameters of `groups`: address of the block, number of matrices, pairs from which on they lie in units."""


def make_groups(layer: Layer) -> Any:
    """Return the kernel that fills a block of groups from the ids, tensor 1; bad ids are reported and left out."""

    def groups(args, ith, nth):
        if ith != 0:
            return
        block, n_matrices, least = param(args, GROUPS), param(args, N_MATRICES), param(args, LEAST_TOGETHER)
        n_pairs = extent(args, 1, 0) * extent(args, 1, 1)
        order = n_matrices + 1 + n_matrices
        for matrix in range(n_matrices + 1):
            store_at(_I64, block, matrix, 0)
        for pair in range(n_pairs):
            index = _id_of(args, 1, pair)
            if 0 <= index < n_matrices:
                store_at(_I64, block, index, load_at(_I64, block, index) + 1)
            else:
                report_index(args, index, n_matrices)
        before, column = 0, 0
        for matrix in range(n_matrices):
            count = load_at(_I64, block, matrix)
            store_at(_I64, block, matrix, before)
            store_at(_I64, block, n_matrices + 1 + matrix, column)
            before += count
            if count >= least:
                column += (count + UNIT_COLUMNS - 1) // UNIT_COLUMNS * UNIT_COLUMNS
        store_at(_I64, block, n_matrices, before)
        for pair in range(n_pairs):
            index = _id_of(args, 1, pair)
            if 0 <= index < n_matrices:
                place = load_at(_I64, block, index)
                store_at(_I64, block, order + place, pair)
                store_at(_I64, block, index, place + 1)
        for matrix in range(n_matrices, 0, -1):
            store_at(_I64, block, matrix, load_at(_I64, block, matrix - 1))
        store_at(_I64, block, 0, 0)
        store_at(_I64, block, n_matrices, before)

    return groups


(
    UNITS, INPUTS, INPUT_STRIDE, MATRIX_STRIDE, N_CELLS, N_USED, N_COLUMNS, UNIT_GROUPS, UNIT_MATRICES, UNIT_LEAST,
) = range(10)  # fmt: skip
"""Parameters of `units`: address of the units, of the inputs, bytes between the inputs' columns and tokens, cells of a
column, ids of a token, columns of a token, and GROUPS, N_MATRICES and LEAST_TOGETHER as above."""


def make_units(layer: Layer, kind: str) -> Any:
    """Return the kernel that copies columns together; a cell is 32 elements if `quantized`, one float32 if `float`."""
    quantized = kind == "quantized"
    nbytes = INPUT_NBYTES if quantized else 4

    @helper
    def fill(target, source, n_cells):
        for cell in range(n_cells):
            place, at = target + UNIT_COLUMNS * nbytes * cell, source + nbytes * cell
            if quantized:
                store(place, load(_CELL, at))
            else:
                store(place, load(_F32, at))

    @helper
    def clear(target, n_cells):
        for cell in range(n_cells):
            for word in range(nbytes // 4):
                store(target + UNIT_COLUMNS * nbytes * cell + 4 * word, _I32(0))

    def units(args, ith, nth):
        groups, n_matrices = param(args, UNIT_GROUPS), param(args, UNIT_MATRICES)
        n_cells, n_used, n_columns = param(args, N_CELLS), param(args, N_USED), param(args, N_COLUMNS)
        for matrix in range(n_matrices):
            first, count, column = _starts(groups, n_matrices, matrix)
            if count < param(args, UNIT_LEAST):
                continue
            padded = (count + UNIT_COLUMNS - 1) // UNIT_COLUMNS * UNIT_COLUMNS
            begin, end = share(padded, ith, nth)
            for i in range(begin, end):
                unit = (column + i) // UNIT_COLUMNS
                target = param(args, UNITS) + unit * UNIT_COLUMNS * nbytes * n_cells + i % UNIT_COLUMNS * nbytes
                if i < count:
                    pair = load_at(_I64, groups, 2 * n_matrices + 1 + first + i)
                    token, row = pair // n_used, pair % n_used % n_columns
                    source = param(args, INPUTS) + token * param(args, MATRIX_STRIDE) + row * param(args, INPUT_STRIDE)
                    fill(target, source, n_cells)
                else:
                    clear(target, n_cells)

    return units


(
    TILE_GROUPS, TILE_UNITS, TILE_LEAST, TILE_INPUTS, TILE_INPUT_STRIDE, TILE_MATRIX_STRIDE, UNIT_STRIDE, N_GROUPS,
    PANEL_STEPS, PANEL_ROWS, PANEL_CODE, TILE_CODE, SCRATCH, SCRATCH_STRIDE,
) = range(14)  # fmt: skip
"""Parameters of `expert_tiles`; tensors: 0 result [m, n_used, tokens], 1 matrices, 2 activations. Those from N_GROUPS
on are as in `product`."""


def make_expert_tiles(layer: Layer) -> Any:
    """Return the kernel over panels of all matrices that pairs name.

    A thread's share of the panels costs as many columns as any other's. One or two columns of a matrix are read where
    they lie, and written where they belong.
    """

    @helper
    def input_of(args, pair):
        n_used, n_columns = extent(args, 0, 1), extent(args, 2, 1)
        of_token = param(args, TILE_INPUTS) + pair // n_used * param(args, TILE_MATRIX_STRIDE)
        return of_token + pair % n_used % n_columns * param(args, TILE_INPUT_STRIDE)

    @helper
    def result_of(args, pair):
        n_used = extent(args, 0, 1)
        return address(args, 0) + pair % n_used * stride(args, 0, 1) + pair // n_used * stride(args, 0, 2)

    @helper
    def panel_of(args, matrix, row, count, spare):
        row_stride = stride(args, 1, 1)
        panel = address(args, 1) + matrix * stride(args, 1, 2) + row * row_stride
        code = param(args, PANEL_CODE)
        if code == 0:
            return panel
        scratch = spare + SPARE_NBYTES + _RESULT_NBYTES
        _call_panel(code, panel, row_stride, count, param(args, PANEL_STEPS), scratch, spare)
        return scratch

    @helper
    def few(args, matrix, order, count, row, n_rows, spare):
        """Columns of a matrix that are too few for units."""
        panel = panel_of(args, matrix, row, n_rows, spare)
        first, last = load_at(_I64, order, 0), load_at(_I64, order, count - 1)
        inputs, out = input_of(args, first), result_of(args, first)
        _call_tile(
            param(args, TILE_CODE), panel, param(args, N_GROUPS), inputs, input_of(args, last) - inputs, count, n_rows,
            out + 4 * row, result_of(args, last) - out, spare,
        )  # fmt: skip

    @helper
    def many(args, matrix, order, units, taken, row, n_rows, spare):
        """A chunk of columns that lie in units: results go through working memory to where they belong."""
        panel, results = panel_of(args, matrix, row, n_rows, spare), spare + SPARE_NBYTES
        _call_tile(
            param(args, TILE_CODE), panel, param(args, N_GROUPS), units, param(args, UNIT_STRIDE), taken, n_rows,
            results, 4 * TILE_ROWS, spare,
        )  # fmt: skip
        for column in range(taken):
            out = result_of(args, load_at(_I64, order, column)) + 4 * row
            copy_bytes(results + 4 * TILE_ROWS * column, out, 4 * n_rows)

    def expert_tiles(args, ith, nth):
        groups, n_matrices = param(args, TILE_GROUPS), extent(args, 1, 2)
        n_rows, panel_rows = extent(args, 1, 1), param(args, PANEL_ROWS)
        panels = (n_rows + panel_rows - 1) // panel_rows
        spare = param(args, SCRATCH) + ith * param(args, SCRATCH_STRIDE)
        low, high = share(load_at(_I64, groups, n_matrices) * panels, ith, nth)
        for matrix in range(n_matrices):
            first, count, column = _starts(groups, n_matrices, matrix)
            if count == 0:
                continue
            begin = min(panels, (max(0, low - first * panels) + count - 1) // count)
            end = min(panels, (max(0, high - first * panels) + count - 1) // count)
            order = groups + 8 * (2 * n_matrices + 1 + first)
            if count < param(args, TILE_LEAST):
                for panel in range(begin, end):
                    row = panel * panel_rows
                    few(args, matrix, order, count, row, min(panel_rows, n_rows - row), spare)
                continue
            n_chunks = max(1, count // _CHUNK_COLUMNS)
            for chunk in range(n_chunks):
                done = chunk * _CHUNK_COLUMNS
                taken = _CHUNK_COLUMNS if chunk < n_chunks - 1 else count - done
                units = param(args, TILE_UNITS) + (column + done) // UNIT_COLUMNS * param(args, UNIT_STRIDE)
                for panel in range(begin, end):
                    row = panel * panel_rows
                    many(args, matrix, order + 8 * done, units, taken, row, min(panel_rows, n_rows - row), spare)

    return expert_tiles


ROWS_INPUTS, ROWS_INPUT_STRIDE, ROWS_MATRIX_STRIDE, ROWS_GROUPS, ROWS_CODE = range(5)
"""Parameters of `expert_rows`, as in `product`; tensors as above, and 3 the ids."""


def make_expert_rows(layer: Layer) -> Any:
    """Return the kernel for few pairs, one after the other: threads share the rows of weights."""

    @helper
    def rows_of(args, pair, matrix, row, count):
        n_used, n_columns = extent(args, 0, 1), extent(args, 2, 1)
        token, slot = pair // n_used, pair % n_used
        inputs = param(args, ROWS_INPUTS) + token * param(args, ROWS_MATRIX_STRIDE)
        _call_rows(
            param(args, ROWS_CODE),
            address(args, 1) + matrix * stride(args, 1, 2) + row * stride(args, 1, 1),
            stride(args, 1, 1),
            count,
            param(args, ROWS_GROUPS),
            inputs + slot % n_columns * param(args, ROWS_INPUT_STRIDE),
            0,
            1,
            address(args, 0) + slot * stride(args, 0, 1) + token * stride(args, 0, 2) + 4 * row,
            0,
        )

    def expert_rows(args, ith, nth):
        n_rows, limit = extent(args, 1, 1), extent(args, 1, 2)
        items = (n_rows + _ROWS_PER_ITEM - 1) // _ROWS_PER_ITEM
        first, last = share(items * extent(args, 0, 1) * extent(args, 0, 2), ith, nth)
        while first < last:
            pair, item = first // items, first % items
            taken = min(items - item, last - first)
            row = item * _ROWS_PER_ITEM
            matrix = _id_of(args, 3, pair)
            if 0 <= matrix < limit:
                rows_of(args, pair, matrix, row, min(taken * _ROWS_PER_ITEM, n_rows - row))
            else:
                report_index(args, matrix, limit)
            first += taken

    return expert_rows


def make_add_id(layer: Layer) -> Any:
    """Return the kernel of ADD_ID, of any float types and strides: tensors 1 the rows, 2 the table, 3 the ids."""
    load_any, store_any = make_any_element(layer)

    def add_id(args, ith, nth):
        n, limit = extent(args, 0, 0), extent(args, 2, 1)
        first, last = share(extent(args, 0, 1) * extent(args, 0, 2), ith, nth)
        for pair in range(first, last):
            i1, i2, i3 = split_row(pair, args, 0)
            index = _id_of(args, 3, pair)
            if not 0 <= index < limit:
                report_index(args, index, limit)
                continue
            a, out = row_address(args, 1, i1, i2, i3), row_address(args, 0, i1, i2, i3)
            b = row_address(args, 2, index, 0, 0)
            for i in range(n):
                left = load_any(element_code(args, 1), a + i * stride(args, 1, 0))
                right = load_any(element_code(args, 2), b + i * stride(args, 2, 0))
                store_any(element_code(args, 0), out + i * stride(args, 0, 0), left + right)

    return add_id
