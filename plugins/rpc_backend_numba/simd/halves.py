"""Half-precision and bfloat16 numbers.

Belongs here: conversions between them and float32, with and without the CPU's help. Must not be here: memory
layouts of blocks.

Source: IEEE 754 binary16, rounded to nearest even; bfloat16 as the upper half of a float32.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.simd.arithmetic import bitcast, convert, select, splat
from rpc_backend_numba.simd.inline import helper
from rpc_backend_numba.simd.memory import load, store
from rpc_backend_numba.simd.shuffles import extract
from rpc_backend_numba.simd.vectors import vector


def make_half(native: bool, lanes: int) -> tuple[Any, Any, Any, Any, Any]:
    """Return `load_half(address)`, `store_half(address, v)`, `half_values(v)`, `half_value(bits)`, `half_bits(value)`.

    The last three convert a vector of bits, the bits of one number, and one number; bits are uint16.
    """
    widen, narrow = _native(lanes) if native else _by_bits(lanes)
    widen_one, narrow_one = _native(1) if native else _by_bits(1)
    BITS, F32_ONE, BITS_ONE = vector(types.uint16, lanes), vector(types.float32, 1), vector(types.uint16, 1)

    @helper
    def load_half(address):
        return widen(load(BITS, address))

    @helper
    def store_half(address, values):
        store(address, narrow(values))

    @helper
    def half_value(bits):
        return extract(widen_one(splat(BITS_ONE, bits)), 0)

    @helper
    def half_bits(value):
        return extract(narrow_one(splat(F32_ONE, value)), 0)

    return load_half, store_half, widen, half_value, half_bits


def _native(lanes: int) -> tuple[Any, Any]:
    HALF, BITS = vector(types.float16, lanes), vector(types.uint16, lanes)

    @helper
    def widen(bits):
        return convert(types.float32, bitcast(HALF, bits))

    @helper
    def narrow(values):
        return bitcast(BITS, convert(types.float16, values))

    return widen, narrow


def _by_bits(lanes: int) -> tuple[Any, Any]:
    F32, I32 = vector(types.float32, lanes), vector(types.int32, lanes)

    @helper
    def widen(bits):
        whole = convert(types.int32, bits)
        sign = (whole & splat(I32, 0x8000)) << splat(I32, 16)
        magnitude = (whole & splat(I32, 0x7FFF)) << splat(I32, 13)
        scaled = bitcast(I32, bitcast(F32, magnitude) * splat(F32, 2.0**112))
        special = magnitude | splat(I32, 0x7F800000)
        return bitcast(F32, sign | select(magnitude >= splat(I32, 0x0F800000), special, scaled))

    @helper
    def narrow(values):
        bits = bitcast(I32, values)
        sign = (bits >> splat(I32, 16)) & splat(I32, 0x8000)
        magnitude = bits & splat(I32, 0x7FFFFFFF)
        odd = (magnitude >> splat(I32, 13)) & splat(I32, 1)
        normal = (magnitude - splat(I32, (112 << 23) - 0xFFF) + odd) >> splat(I32, 13)
        small = bitcast(I32, bitcast(F32, magnitude) + splat(F32, 0.5)) - splat(I32, 126 << 23)
        finite = select(magnitude < splat(I32, 113 << 23), small, normal)
        special = select(magnitude > splat(I32, 0x7F800000), splat(I32, 0x7E00), splat(I32, 0x7C00))
        return convert(types.uint16, sign | select(magnitude < splat(I32, 143 << 23), finite, special))

    return widen, narrow


def make_bf16(lanes: int) -> tuple[Any, Any, Any]:
    """Return `load_bf16(address)`, `store_bf16(address, v)` and `bf16_bits(value)` of one number."""
    F32, I32, BITS = vector(types.float32, lanes), vector(types.int32, lanes), vector(types.uint16, lanes)
    narrow, narrow_one = _bf16_narrow(lanes), _bf16_narrow(1)
    F32_ONE = vector(types.float32, 1)

    @helper
    def load_bf16(address):
        return bitcast(F32, convert(types.int32, load(BITS, address)) << splat(I32, 16))

    @helper
    def store_bf16(address, values):
        store(address, narrow(values))

    @helper
    def bf16_bits(value):
        return extract(narrow_one(splat(F32_ONE, value)), 0)

    return load_bf16, store_bf16, bf16_bits


def _bf16_narrow(lanes: int) -> Any:
    I32 = vector(types.int32, lanes)

    @helper
    def narrow(values):
        bits = bitcast(I32, values)
        upper = (bits >> splat(I32, 16)) & splat(I32, 0xFFFF)
        rounded = ((bits + splat(I32, 0x7FFF) + (upper & splat(I32, 1))) >> splat(I32, 16)) & splat(I32, 0xFFFF)
        not_a_number = (bits & splat(I32, 0x7FFFFFFF)) > splat(I32, 0x7F800000)
        return convert(types.uint16, select(not_a_number, upper | splat(I32, 64), rounded))

    return narrow
