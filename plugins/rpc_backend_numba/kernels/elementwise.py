"""Arithmetic element by element.

Belongs here: ADD, ADD1, SUB, MUL, DIV, SCALE, CLAMP, LOG, SQR, SQRT, LEAKY_RELU, SIN, COS, UNARY, GLU. Must
not be here: anything that looks along a row.

Packed F32 rows go by the vector; any other mix of float types and strides goes element by element.
"""

from __future__ import annotations

import math
from typing import Any

from numba import types

from rpc_backend_numba.element_codes import F32 as F32_CODE
from rpc_backend_numba.formats import GROUP
from rpc_backend_numba.kernels.access import (
    element_code,
    extent,
    n_pieces,
    n_rows,
    param,
    param_float,
    repeated_row_address,
    row_address,
    share,
    split_row,
    stride,
)
from rpc_backend_numba.kernels.activations import make_activation, make_gate, make_xielu
from rpc_backend_numba.kernels.elements import make_any_element
from rpc_backend_numba.simd import extract, fma, helper, load, maximum, minimum, select, splat, store, vsqrt, zero
from rpc_backend_numba.simd.layer import Layer


@helper
def _is_packed(args, tensor):
    return element_code(args, tensor) == F32_CODE and stride(args, tensor, 0) == 4


def make_binary(layer: Layer, name: str) -> Any:
    """Return the kernel of ADD, SUB, MUL or DIV; tensor 2 repeats along every axis."""
    F32, lanes = layer.F32, layer.lanes
    load_any, store_any = make_any_element(layer)
    which = ("ADD", "SUB", "MUL", "DIV").index(name)

    @helper
    def apply(a, b):
        if which == 0:
            return a + b
        if which == 1:
            return a - b
        if which == 2:
            return a * b
        return a / b

    @helper
    def packed_row(a, b, out, i, n):
        while i + lanes <= n:
            store(out + 4 * i, apply(load(F32, a + 4 * i), load(F32, b + 4 * i)))
            i += lanes
        return i

    @helper
    def packed_row_and_one(a, b, out, i, n):
        """The same where one element of tensor 2 goes with a whole row."""
        one = splat(F32, load(types.float32, b))
        while i + lanes <= n:
            store(out + 4 * i, apply(load(F32, a + 4 * i), one))
            i += lanes
        return i

    def binary(args, ith, nth):
        n, repeat = extent(args, 0, 0), extent(args, 2, 0)
        packed = _is_packed(args, 0) and _is_packed(args, 1)
        fast = packed and _is_packed(args, 2) and repeat == n
        fast_one = packed and element_code(args, 2) == F32_CODE and repeat == 1
        code_a, code_b, code_out = element_code(args, 1), element_code(args, 2), element_code(args, 0)
        step_a, step_b, step_out = stride(args, 1, 0), stride(args, 2, 0), stride(args, 0, 0)
        pieces = n_pieces(args, 0)
        first, last = share(pieces * n_rows(args, 0), ith, nth)
        while first < last:
            row, piece = first // pieces, first % pieces
            taken = min(pieces - piece, last - first)
            i1, i2, i3 = split_row(row, args, 0)
            a, b = row_address(args, 1, i1, i2, i3), repeated_row_address(args, 2, i1, i2, i3)
            out = row_address(args, 0, i1, i2, i3)
            start, end = piece * GROUP, min(n, (piece + taken) * GROUP)
            if fast:
                start = packed_row(a, b, out, start, end)
            elif fast_one:
                start = packed_row_and_one(a, b, out, start, end)
            for i in range(start, end):
                value = apply(load_any(code_a, a + i * step_a), load_any(code_b, b + i % repeat * step_b))
                store_any(code_out, out + i * step_out, value)
            first += taken

    return binary


def _make_map(layer: Layer, function: Any) -> Any:
    """Return the kernel that applies `function(v, args)` to every element of tensor 1."""
    F32, lanes = layer.F32, layer.lanes
    load_any, store_any = make_any_element(layer)

    def elementwise(args, ith, nth):
        n, fast = extent(args, 0, 0), _is_packed(args, 0) and _is_packed(args, 1)
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            a, out = row_address(args, 1, i1, i2, i3), row_address(args, 0, i1, i2, i3)
            i = 0
            while fast and i + lanes <= n:
                store(out + 4 * i, function(load(F32, a + 4 * i), args))
                i += lanes
            while i < n:
                x = load_any(element_code(args, 1), a + i * stride(args, 1, 0))
                value = extract(function(splat(F32, x), args), 0)
                store_any(element_code(args, 0), out + i * stride(args, 0, 0), value)
                i += 1

    return elementwise


def make_scale(layer: Layer) -> Any:
    """Return the kernel of SCALE: parameters 0 the factor, 1 what is added."""
    F32 = layer.F32

    @helper
    def scale(x, args):
        return fma(x, splat(F32, param_float(args, 0)), splat(F32, param_float(args, 1)))

    return _make_map(layer, scale)


def make_clamp(layer: Layer) -> Any:
    """Return the kernel of CLAMP: parameters 0 the least, 1 the most; a NaN stays one."""
    F32 = layer.F32

    @helper
    def clamp(x, args):
        bounded = minimum(maximum(x, splat(F32, param_float(args, 0))), splat(F32, param_float(args, 1)))
        return select(x == x, bounded, x)

    return _make_map(layer, clamp)


def make_log(layer: Layer) -> Any:
    """Return the kernel of LOG."""
    precise_log = layer.precise_log

    @helper
    def log(x, args):
        return precise_log(x)

    return _make_map(layer, log)


def make_function(layer: Layer, name: str) -> Any:
    """Return the kernel of SQR, SQRT, or LEAKY_RELU, whose parameter 0 is the slope below 0."""
    F32 = layer.F32

    @helper
    def square(x, args):
        return x * x

    @helper
    def root(x, args):
        return vsqrt(x)

    @helper
    def leaky_relu(x, args):
        return select(x > zero(F32), x, x * splat(F32, param_float(args, 0)))

    return _make_map(layer, {"SQR": square, "SQRT": root, "LEAKY_RELU": leaky_relu}[name])


def make_wave(layer: Layer, name: str) -> Any:
    """Return the kernel of SIN or COS, element by element in float64."""
    load_any, store_any = make_any_element(layer)
    is_sine = name == "SIN"

    def wave(args, ith, nth):
        first, last = share(n_rows(args, 0), ith, nth)
        for row in range(first, last):
            i1, i2, i3 = split_row(row, args, 0)
            a, out = row_address(args, 1, i1, i2, i3), row_address(args, 0, i1, i2, i3)
            for i in range(extent(args, 0, 0)):
                x = types.float64(load_any(element_code(args, 1), a + i * stride(args, 1, 0)))
                y = math.sin(x) if is_sine else math.cos(x)
                store_any(element_code(args, 0), out + i * stride(args, 0, 0), types.float32(y))

    return wave


def make_unary(layer: Layer, name: str) -> Any:
    """Return the kernel of one member of `Unary`; XIELU has parameters 0 alpha_n, 1 alpha_p, 2 beta, 3 eps."""
    if name == "XIELU":
        xielu = make_xielu(layer)

        @helper
        def apply_xielu(x, args):
            below, above = param_float(args, 0), param_float(args, 1)
            return xielu(x, below, above, param_float(args, 2), param_float(args, 3))

        return _make_map(layer, apply_xielu)
    activation = make_activation(layer, name)

    @helper
    def apply(x, args):
        return activation(x)

    return _make_map(layer, apply)


GATE_OFFSET, VALUE_OFFSET, ALPHA, LIMIT = 0, 1, 2, 3
"""Parameters of GLU: where in a row of tensor 1 the gate begins, and in a row of tensor 2 the value, in bytes; numbers
of the forms with limits."""


def make_glu(layer: Layer, name: str) -> Any:
    """Return the kernel of one member of `Glu`: activation(gate) times value."""
    F32, lanes = layer.F32, layer.lanes
    load_any, store_any = make_any_element(layer)
    gated = make_gate(layer, name)

    def glu(args, ith, nth):
        n = extent(args, 0, 0)
        fast = _is_packed(args, 0) and _is_packed(args, 1) and _is_packed(args, 2)
        alpha, limit = param_float(args, ALPHA), param_float(args, LIMIT)
        pieces = n_pieces(args, 0)
        first, last = share(pieces * n_rows(args, 0), ith, nth)
        while first < last:
            row, piece = first // pieces, first % pieces
            taken = min(pieces - piece, last - first)
            i1, i2, i3 = split_row(row, args, 0)
            gate = row_address(args, 1, i1, i2, i3) + param(args, GATE_OFFSET)
            value = row_address(args, 2, i1, i2, i3) + param(args, VALUE_OFFSET)
            out = row_address(args, 0, i1, i2, i3)
            i, end = piece * GROUP, min(n, (piece + taken) * GROUP)
            while fast and i + lanes <= end:
                store(out + 4 * i, gated(load(F32, gate + 4 * i), load(F32, value + 4 * i), alpha, limit))
                i += lanes
            while i < end:
                x = load_any(element_code(args, 1), gate + i * stride(args, 1, 0))
                y = load_any(element_code(args, 2), value + i * stride(args, 2, 0))
                product = extract(gated(splat(F32, x), splat(F32, y), alpha, limit), 0)
                store_any(element_code(args, 0), out + i * stride(args, 0, 0), product)
                i += 1
            first += taken

    return glu
