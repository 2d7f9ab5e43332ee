"""How each quantised format gives 32 weights at a time.

Belongs here: one function per format. Must not be here: what is done with the weights.

Each is `unpack(block, j)`: the address of a block and the number of a group of 32 in it; it returns the 32 bytes
`q`, two scales and two minimums, for the first and second 16. A weight is `scale * (q - zero_point) + minimum`.

Source: block layouts of ggml (`ggml-common.h`) and their meaning (`dequantize_row_*` in `ggml-quants.c`).
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.formats import IQ4_NL_VALUES, MXFP4_VALUES
from rpc_backend_numba.simd import (
    bits_f32,
    concat,
    helper,
    lanes_of_bits,
    load,
    lookup_intrinsic,
    select,
    splat,
    vector,
    zero,
)
from rpc_backend_numba.simd.layer import Layer

_U8, _I8, _U16, _U32, _F32 = types.uint8, types.int8, types.uint16, types.uint32, types.float32
_I32 = types.int32
_BYTES16, _BYTES32 = vector(types.uint8, 16), vector(types.uint8, 32)
_ZERO = _F32(0.0)


def make_unpack(layer: Layer, format_name: str) -> Any:
    """Return `unpack(block, j)` of a format."""
    return _MAKERS[format_name](layer)


def make_minimums(layer: Layer, format_name: str) -> tuple[Any, Any]:
    """Return `minimums(block, j)` and `factor(block)` of a format of long blocks: whole numbers, what multiplies them.

    They belong to the first and second 16 of group j.
    """
    half = layer.half_value
    is_q2 = format_name == "Q2_K"
    place = 82 if is_q2 else 2

    @helper
    def minimums(block, j):
        if is_q2:
            return _F32(load(_U8, block + 2 * j) >> 4), _F32(load(_U8, block + 2 * j + 1) >> 4)
        _, both = _k4_scales(block + 4, j)
        return both, both

    @helper
    def factor(block):
        return -half(load(_U16, block + place))

    return minimums, factor


@helper
def _nibbles(address):
    """16 bytes as 32 numbers of 4 bits: all the low halves, then all the high ones."""
    pairs = load(_BYTES16, address)
    return concat(pairs & splat(_BYTES16, 15), pairs >> splat(_BYTES16, 4))


@helper
def _bit_plane(bits, value):
    """`value` in each byte whose bit of a uint32 is set."""
    return select(lanes_of_bits(bits), splat(_BYTES32, value), zero(_BYTES32))


@helper
def _shifted(address, shift, mask):
    return (load(_BYTES32, address) >> splat(_BYTES32, shift)) & splat(_BYTES32, mask)


def _q4_0(layer: Layer) -> Any:
    half = layer.half_value

    @helper
    def unpack(block, j):
        d = half(load(_U16, block))
        return _nibbles(block + 2), d, d, _ZERO, _ZERO

    return unpack


def _q4_1(layer: Layer) -> Any:
    half = layer.half_value

    @helper
    def unpack(block, j):
        d, m = half(load(_U16, block)), half(load(_U16, block + 2))
        return _nibbles(block + 4), d, d, m, m

    return unpack


def _q5_0(layer: Layer) -> Any:
    half = layer.half_value

    @helper
    def unpack(block, j):
        d = half(load(_U16, block))
        return _nibbles(block + 6) | _bit_plane(load(_U32, block + 2), 16), d, d, _ZERO, _ZERO

    return unpack


def _q5_1(layer: Layer) -> Any:
    half = layer.half_value

    @helper
    def unpack(block, j):
        d, m = half(load(_U16, block)), half(load(_U16, block + 2))
        return _nibbles(block + 8) | _bit_plane(load(_U32, block + 4), 16), d, d, m, m

    return unpack


def _q8_0(layer: Layer) -> Any:
    half = layer.half_value

    @helper
    def unpack(block, j):
        d = half(load(_U16, block))
        return load(_BYTES32, block + 2) ^ splat(_BYTES32, 128), d, d, _ZERO, _ZERO

    return unpack


def _iq4_nl(layer: Layer) -> Any:
    half = layer.half_value
    lookup = lookup_intrinsic(tuple(value + 128 for value in IQ4_NL_VALUES), layer.target.byte_shuffle)

    @helper
    def unpack(block, j):
        d = half(load(_U16, block))
        return lookup(_nibbles(block + 2)), d, d, _ZERO, _ZERO

    return unpack


@helper
def half_power(exponent):
    """2^(exponent - 128) as float32, of an exponent in [0, 255]."""
    if exponent < 2:
        return bits_f32(_I32(0x00200000 << exponent))
    return bits_f32(_I32((exponent - 1) << 23))


def _mxfp4(layer: Layer) -> Any:
    lookup = lookup_intrinsic(tuple(value + 128 for value in MXFP4_VALUES), layer.target.byte_shuffle)

    @helper
    def unpack(block, j):
        d = half_power(types.int64(load(_U8, block)))
        return lookup(_nibbles(block + 1)), d, d, _ZERO, _ZERO

    return unpack


def _iq4_xs(layer: Layer) -> Any:
    """Eight scales of six bits, less 32: the low four bits in 4 bytes, the high two in a word before them."""
    half = layer.half_value
    lookup = lookup_intrinsic(tuple(value + 128 for value in IQ4_NL_VALUES), layer.target.byte_shuffle)

    @helper
    def unpack(block, j):
        low = (load(_U8, block + 4 + (j >> 1)) >> (4 * (j & 1))) & 15
        high = (load(_U16, block + 2) >> (2 * j)) & 3
        d = half(load(_U16, block)) * _F32(low + 16 * high - 32)
        return lookup(_nibbles(block + 8 + 16 * j)), d, d, _ZERO, _ZERO

    return unpack


def _q2_k(layer: Layer) -> Any:
    half = layer.half_value

    @helper
    def unpack(block, j):
        d, d_min = half(load(_U16, block + 80)), half(load(_U16, block + 82))
        first, second = load(_U8, block + 2 * j), load(_U8, block + 2 * j + 1)
        q = _shifted(block + 16 + 32 * (j >> 2), 2 * (j & 3), 3)
        return (
            q,
            d * _F32(first & 15),
            d * _F32(second & 15),
            -d_min * _F32(first >> 4),
            -d_min * _F32(second >> 4),
        )

    return unpack


@helper
def _q3_k_scale(scales, i):
    """Scale i of 16: its low 4 bits lie in 8 bytes, its high 2 bits in the next 4."""
    low = (load(_U8, scales + (i & 7)) >> (4 * (i >> 3))) & 15
    high = (load(_U8, scales + 8 + (i & 3)) >> (2 * (i >> 2))) & 3
    return _F32(low + 16 * high - 32)


def _q3_k(layer: Layer) -> Any:
    half = layer.half_value

    @helper
    def unpack(block, j):
        d = half(load(_U16, block + 108))
        q = _shifted(block + 32 + 32 * (j >> 2), 2 * (j & 3), 3)
        high = _shifted(block, j, 1) << splat(_BYTES32, 2)
        scales = block + 96
        return q | high, d * _q3_k_scale(scales, 2 * j), d * _q3_k_scale(scales, 2 * j + 1), _ZERO, _ZERO

    return unpack


@helper
def _k4_scales(scales, j):
    """The 6-bit scale and minimum j of 8 that share 12 bytes (Q4_K and Q5_K)."""
    if j < 4:
        return _F32(load(_U8, scales + j) & 63), _F32(load(_U8, scales + j + 4) & 63)
    both = load(_U8, scales + j + 4)
    scale = (both & 15) | ((load(_U8, scales + j - 4) >> 6) << 4)
    minimum = (both >> 4) | ((load(_U8, scales + j) >> 6) << 4)
    return _F32(scale), _F32(minimum)


def _q4_k(layer: Layer) -> Any:
    half = layer.half_value

    @helper
    def unpack(block, j):
        scale, minimum = _k4_scales(block + 4, j)
        d, m = half(load(_U16, block)) * scale, -half(load(_U16, block + 2)) * minimum
        return _shifted(block + 16 + 32 * (j >> 1), 4 * (j & 1), 15), d, d, m, m

    return unpack


def _q5_k(layer: Layer) -> Any:
    half = layer.half_value

    @helper
    def unpack(block, j):
        scale, minimum = _k4_scales(block + 4, j)
        d, m = half(load(_U16, block)) * scale, -half(load(_U16, block + 2)) * minimum
        high = _shifted(block + 16, j, 1) << splat(_BYTES32, 4)
        return _shifted(block + 48 + 32 * (j >> 1), 4 * (j & 1), 15) | high, d, d, m, m

    return unpack


def _q6_k(layer: Layer) -> Any:
    half = layer.half_value

    @helper
    def unpack(block, j):
        n, i = j >> 2, j & 3
        low = _shifted(block + 64 * n + 32 * (i & 1), 4 * (i >> 1), 15)
        high = _shifted(block + 128 + 32 * n, 2 * i, 3) << splat(_BYTES32, 4)
        d = half(load(_U16, block + 208))
        scales = block + 192 + 2 * j
        return low | high, d * _F32(load(_I8, scales)), d * _F32(load(_I8, scales + 1)), _ZERO, _ZERO

    return unpack


_MAKERS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "MXFP4": _mxfp4,
    "IQ4_XS": _iq4_xs,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
