"""How a kernel reads its argument block.

Belongs here: the positions of `layout` as numba functions, the share of a thread, error reports. Must not be
here: kernels.
"""

from __future__ import annotations

from numba import types

from rpc_backend_numba import layout
from rpc_backend_numba.atomics import compare_exchange
from rpc_backend_numba.formats import GROUP
from rpc_backend_numba.simd import helper, load_at, store_at

I64, F64 = types.int64, types.float64
_TENSORS, _TENSOR_WORDS, _PARAMS = layout.TENSORS, layout.TENSOR_WORDS, layout.PARAMS
_EXTENT, _STRIDE, _TYPE = layout.EXTENT, layout.STRIDE, layout.TYPE
_NODE, _ERROR = layout.NODE, layout.ERROR
_ERROR_INDEX, _ERROR_LIMIT = layout.ERROR_INDEX, layout.ERROR_LIMIT


@helper
def address(args, tensor):
    """Address of the first element of tensor 0 (the result), 1, 2, … (the sources); 0 if there is none."""
    return load_at(I64, args, _TENSORS + tensor * _TENSOR_WORDS)


@helper
def extent(args, tensor, axis):
    return load_at(I64, args, _TENSORS + tensor * _TENSOR_WORDS + _EXTENT + axis)


@helper
def stride(args, tensor, axis):
    return load_at(I64, args, _TENSORS + tensor * _TENSOR_WORDS + _STRIDE + axis)


@helper
def element_code(args, tensor):
    return load_at(I64, args, _TENSORS + tensor * _TENSOR_WORDS + _TYPE)


@helper
def n_rows(args, tensor):
    return extent(args, tensor, 1) * extent(args, tensor, 2) * extent(args, tensor, 3)


@helper
def param(args, index):
    return load_at(I64, args, _PARAMS + index)


@helper
def param_float(args, index):
    return load_at(F64, args, _PARAMS + index)


@helper
def share(n_items, ith, nth):
    """The items [first, last) of thread `ith` of `nth`."""
    return n_items * ith // nth, n_items * (ith + 1) // nth


@helper
def n_pieces(args, tensor):
    """Into how many pieces of `GROUP` elements a row is cut, so that threads can share it."""
    return (extent(args, tensor, 0) + GROUP - 1) // GROUP


@helper
def split_row(row, args, tensor):
    """The position of a flat row number: (i1, i2, i3) in the rows of a tensor."""
    n1, n2 = extent(args, tensor, 1), extent(args, tensor, 2)
    outer = row // n1
    return row - outer * n1, outer % n2, outer // n2


@helper
def row_address(args, tensor, i1, i2, i3):
    return (
        address(args, tensor)
        + i1 * stride(args, tensor, 1)
        + i2 * stride(args, tensor, 2)
        + i3 * stride(args, tensor, 3)
    )


@helper
def repeated_row_address(args, tensor, i1, i2, i3):
    """The row of a tensor that repeats along axes 1 to 3."""
    return row_address(
        args, tensor, i1 % extent(args, tensor, 1), i2 % extent(args, tensor, 2), i3 % extent(args, tensor, 3)
    )


@helper
def report_index(args, index, limit):
    """Keep an index outside [0, limit) as the plan's error, unless it has one already."""
    error = load_at(I64, args, _ERROR)
    if compare_exchange(error, 0, load_at(I64, args, _NODE) + 1):
        store_at(I64, error, _ERROR_INDEX, index)
        store_at(I64, error, _ERROR_LIMIT, limit)
