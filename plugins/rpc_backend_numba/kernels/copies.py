"""Copies: elements and rows to another place, shape or element type.

Belongs here: DUP, CPY, CONT, CONCAT, REPEAT. Must not be here: rows chosen by data (`rows`).
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.atomics import code_call
from rpc_backend_numba.kernels.access import (
    element_code,
    extent,
    n_rows,
    param,
    repeated_row_address,
    row_address,
    share,
    split_row,
    stride,
)
from rpc_backend_numba.kernels.elements import make_any_element
from rpc_backend_numba.simd import helper, load, store, vector
from rpc_backend_numba.simd.layer import Layer

_call_codec = code_call(3)
_BYTES = vector(types.uint8, 32)
_I32, _U8, _U16, _U32, _U64 = types.int32, types.uint8, types.uint16, types.uint32, types.uint64

ELEMENT_NBYTES, DECODE, ENCODE, SCRATCH, SCRATCH_STRIDE = 0, 1, 2, 3, 4
"""Parameters of `copy_rows`, `concat` (and 5: its axis) and `repeat`; `copy` has only the first."""


@helper
def copy_bytes(source, target, n):
    """Copy `n` bytes that do not overlap."""
    i = 0
    while i + 32 <= n:
        store(target + i, load(_BYTES, source + i))
        i += 32
    while i < n:
        store(target + i, load(_U8, source + i))
        i += 1


@helper
def _copy_one(source, target, nbytes):
    if nbytes == 4:
        store(target, load(_U32, source))
    elif nbytes == 2:
        store(target, load(_U16, source))
    elif nbytes == 8:
        store(target, load(_U64, source))
    else:
        store(target, load(_U8, source))


@helper
def _copy_row(source, source_step, target, target_step, n, nbytes):
    """Copy `n` elements of `nbytes`, each at its own distance."""
    if source_step == nbytes and target_step == nbytes:
        copy_bytes(source, target, n * nbytes)
    else:
        for i in range(n):
            _copy_one(source + i * source_step, target + i * target_step, nbytes)


@helper
def _place_of(index, args, tensor):
    """Address of an element by its flat number in row order."""
    n0 = extent(args, tensor, 0)
    i1, i2, i3 = split_row(index // n0, args, tensor)
    return row_address(args, tensor, i1, i2, i3) + index % n0 * stride(args, tensor, 0)


def make_copy(layer: Layer, how: str) -> Any:
    """Return the kernel that copies element by element between any two shapes.

    `how` is `same` (bytes are kept), `float` (between float types), `to_int` (F32 to I32) or `to_float` (back).
    """
    load_any, store_any = make_any_element(layer)
    kind = {"same": 0, "float": 1, "to_int": 2, "to_float": 3}[how]

    @helper
    def one(source, target, args):
        if kind == 0:
            _copy_one(source, target, param(args, ELEMENT_NBYTES))
        elif kind == 1:
            store_any(element_code(args, 0), target, load_any(element_code(args, 1), source))
        elif kind == 2:
            store(target, _I32(load(types.float32, source)))
        else:
            store(target, types.float32(load(_I32, source)))

    def copy(args, ith, nth):
        n0, step, target_n0 = extent(args, 1, 0), stride(args, 1, 0), extent(args, 0, 0)
        target_step = stride(args, 0, 0)
        first, last = share(n0 * n_rows(args, 1), ith, nth)
        while first < last:
            count = min(last - first, n0 - first % n0, target_n0 - first % target_n0)
            source, target = _place_of(first, args, 1), _place_of(first, args, 0)
            for i in range(count):
                one(source + i * step, target + i * target_step, args)
            first += count

    return copy


def make_copy_rows(layer: Layer, how: str) -> Any:
    """Return the kernel that copies packed rows between equal shapes.

    `how` is `same`, `decode` (to float32), `encode` (from float32) or `both`; codecs come as parameters.
    """
    decodes, encodes = how in ("decode", "both"), how in ("encode", "both")

    def copy_rows(args, ith, nth):
        n = extent(args, 1, 0)
        spare = param(args, SCRATCH) + ith * param(args, SCRATCH_STRIDE)
        first, last = share(n_rows(args, 1), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 1)
            source, target = row_address(args, 1, i1, i2, i3), row_address(args, 0, i1, i2, i3)
            if decodes and encodes:
                _call_codec(param(args, DECODE), source, spare, n)
                _call_codec(param(args, ENCODE), spare, target, n)
            elif decodes:
                _call_codec(param(args, DECODE), source, target, n)
            elif encodes:
                _call_codec(param(args, ENCODE), source, target, n)
            else:
                copy_bytes(source, target, n * param(args, ELEMENT_NBYTES))

    return copy_rows


def make_concat(layer: Layer) -> Any:
    """Return the kernel that joins tensors 1 and 2 along the axis in parameter 5."""

    @helper
    def part(args, tensor, ith, nth, offset):
        nbytes = param(args, ELEMENT_NBYTES)
        first, last = share(n_rows(args, tensor), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, tensor)
            _copy_row(
                row_address(args, tensor, i1, i2, i3),
                stride(args, tensor, 0),
                row_address(args, 0, i1, i2, i3) + offset,
                stride(args, 0, 0),
                extent(args, tensor, 0),
                nbytes,
            )

    def concat(args, ith, nth):
        axis = param(args, 5)
        part(args, 1, ith, nth, 0)
        part(args, 2, ith, nth, extent(args, 1, axis) * stride(args, 0, axis))

    return concat


def make_repeat(layer: Layer) -> Any:
    """Return the kernel that repeats tensor 1 along every axis."""

    def repeat(args, ith, nth):
        nbytes, n = param(args, ELEMENT_NBYTES), extent(args, 1, 0)
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            source, target = repeated_row_address(args, 1, i1, i2, i3), row_address(args, 0, i1, i2, i3)
            for start in range(0, extent(args, 0, 0), n):
                place = target + start * stride(args, 0, 0)
                _copy_row(source, stride(args, 1, 0), place, stride(args, 0, 0), n, nbytes)

    return repeat
