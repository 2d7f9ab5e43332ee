"""Whole packed rows of any element type from and to float32.

Belongs here: one decoder and one encoder per element type. Must not be here: which rows (`rows`, `copies`).

`to_float_<type>(source, target, n)` and `from_float_<type>(source, target, n)` take addresses and a count of
elements, whole blocks if the type is quantised. The functions behind them can be inlined into other kernels.

Source: rounding of the quantisers follows ggml (`quantize_row_*_ref` in `ggml-quants.c`).
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.formats import FORMATS, GROUP
from rpc_backend_numba.kernels.convert import (
    ELEMENT_NBYTES,
    make_element_load,
    make_element_store,
    make_vector_load,
    make_vector_store,
)
from rpc_backend_numba.kernels.unpack import make_unpack
from rpc_backend_numba.simd import (
    convert,
    fma,
    helper,
    high_half,
    hmax,
    load,
    low_half,
    maximum,
    minimum,
    select,
    splat,
    splat_at,
    store,
    vabs,
    vector,
    zero,
)
from rpc_backend_numba.simd.layer import Layer

_F32, _U8, _U32 = types.float32, types.uint8, types.uint32
_F32X16, _I32X16 = vector(types.float32, 16), vector(types.int32, 16)


def make_to_float(layer: Layer, type_name: str) -> Any:
    """Return the kernel that decodes a row."""
    decode = make_decoder(layer, type_name)

    def to_float(source, target, n):
        decode(source, target, n)

    return to_float


def make_from_float(layer: Layer, type_name: str) -> Any:
    """Return the kernel that encodes a row."""
    encode = make_encoder(layer, type_name)

    def from_float(source, target, n):
        encode(source, target, n)

    return from_float


def make_decoder(layer: Layer, type_name: str) -> Any:
    """Return `decode(source, target, n)`, to be inlined."""
    if type_name == "Q8_0":
        return _q8_0_decoder(layer)
    if type_name in FORMATS:
        return _block_decoder(layer, type_name)
    return _plain_mover(layer, make_vector_load(layer, type_name), make_element_load(layer, type_name),
                        make_vector_store(layer, "F32"), make_element_store(layer, "F32"),
                        ELEMENT_NBYTES[type_name], 4)  # fmt: skip


def make_encoder(layer: Layer, type_name: str) -> Any:
    """Return `encode(source, target, n)`, to be inlined."""
    if type_name in _BLOCK_ENCODERS:
        return _block_encoder(layer, type_name)
    return _plain_mover(layer, make_vector_load(layer, "F32"), make_element_load(layer, "F32"),
                        make_vector_store(layer, type_name), make_element_store(layer, type_name),
                        4, ELEMENT_NBYTES[type_name])  # fmt: skip


def _plain_mover(
    layer: Layer, load_vector: Any, load_one: Any, store_vector: Any, store_one: Any, from_step: int, to_step: int
) -> Any:
    lanes = layer.lanes

    @helper
    def move(source, target, n):
        i = 0
        while i + lanes <= n:
            store_vector(target + to_step * i, load_vector(source + from_step * i))
            i += lanes
        while i < n:
            store_one(target + to_step * i, load_one(source + from_step * i))
            i += 1

    return move


def _block_decoder(layer: Layer, type_name: str) -> Any:
    form = FORMATS[type_name]
    unpack = make_unpack(layer, type_name)
    groups, block_nbytes, zero_point = form.block_size // GROUP, form.block_nbytes, float(form.zero_point)

    @helper
    def put16(target, q, scale, minimum):
        values = convert(_F32, q) - splat(_F32X16, zero_point)
        store(target, fma(values, splat(_F32X16, scale), splat(_F32X16, minimum)))

    @helper
    def decode(source, target, n):
        for _ in range(n // (GROUP * groups)):
            for j in range(groups):
                q, d0, d1, m0, m1 = unpack(source, j)
                put16(target, low_half(q), d0, m0)
                put16(target + 64, high_half(q), d1, m1)
                target += 4 * GROUP
            source += block_nbytes

    return decode


def _q8_0_decoder(layer: Layer) -> Any:
    """Of its own: caches of keys and values are read through it."""
    half_values, lanes, block_nbytes = layer.half_values, layer.lanes, FORMATS["Q8_0"].block_nbytes
    HALVES, BYTES = vector(types.uint16, lanes), vector(types.int8, lanes)

    @helper
    def decode(source, target, n):
        for _ in range(n // GROUP):
            scale = half_values(splat_at(HALVES, source))
            for i in range(0, GROUP, lanes):
                store(target + 4 * i, convert(_F32, load(BYTES, source + 2 + i)) * scale)
            source += block_nbytes
            target += 4 * GROUP

    return decode


def _block_encoder(layer: Layer, type_name: str) -> Any:
    quantize, block_nbytes = _BLOCK_ENCODERS[type_name](layer), FORMATS[type_name].block_nbytes

    @helper
    def encode(source, target, n):
        for block in range(n // GROUP):
            quantize(source + 4 * GROUP * block, target + block_nbytes * block)

    return encode


@helper
def _largest(source):
    """The element of 32 that is largest in magnitude, with its sign; of equals the first."""
    best, magnitude = _F32(0.0), _F32(0.0)
    for i in range(GROUP):
        value = load(_F32, source + 4 * i)
        if abs(value) > magnitude:
            best, magnitude = value, abs(value)
    return best


@helper
def _limits(source):
    """The smallest and the largest of 32 elements."""
    low = high = load(_F32, source)
    for i in range(1, GROUP):
        value = load(_F32, source + 4 * i)
        low, high = min(low, value), max(high, value)
    return low, high


@helper
def _reciprocal(value):
    return _F32(1.0) / value if value != 0 else _F32(0.0)


@helper
def _whole(value, limit):
    """Truncate a number that is not negative, up to `limit`; not-a-number gives 0."""
    return min(limit, int(value)) if value > 0 else 0


@helper
def _store_pair(target, i, low, high):
    store(target + i, _U8((low & 15) | ((high & 15) << 4)))


def _q8_0(layer: Layer) -> Any:
    half_bits = layer.half_bits

    @helper
    def levels(values, inverse):
        """Whole numbers, halves away from zero; not-a-number gives 0."""
        scaled = values * splat(_F32X16, inverse)
        away = minimum(vabs(scaled) + splat(_F32X16, 0.5), splat(_F32X16, 127.0))
        whole = convert(types.int32, select(scaled == scaled, away, zero(_F32X16)))
        return convert(types.int8, select(scaled < zero(_F32X16), zero(_I32X16) - whole, whole))

    @helper
    def quantize(source, target):
        first, second = load(_F32X16, source), load(_F32X16, source + 64)
        scale = hmax(maximum(vabs(first), maximum(vabs(second), zero(_F32X16)))) / _F32(127.0)
        inverse = _reciprocal(scale)
        store(target, half_bits(scale))
        store(target + 2, levels(first, inverse))
        store(target + 18, levels(second, inverse))

    return quantize


def _symmetric(bits: int) -> Any:
    """Q4_0 and Q5_0: the scale maps the largest element to the lowest level."""
    middle, has_high = 1 << (bits - 1), bits == 5
    data = 6 if has_high else 2

    def maker(layer: Layer) -> Any:
        half_bits = layer.half_bits

        @helper
        def quantize(source, target):
            scale = _largest(source) / _F32(-middle)
            inverse = _reciprocal(scale)
            store(target, half_bits(scale))
            high_bits = 0
            for i in range(GROUP // 2):
                first = _whole(load(_F32, source + 4 * i) * inverse + _F32(middle + 0.5), 2 * middle - 1)
                second = _whole(load(_F32, source + 4 * i + 64) * inverse + _F32(middle + 0.5), 2 * middle - 1)
                _store_pair(target + data, i, first, second)
                high_bits |= ((first >> 4) << i) | ((second >> 4) << (i + 16))
            if has_high:
                store(target + 2, _U32(high_bits))

        return quantize

    return maker


def _with_minimum(bits: int) -> Any:
    """Q4_1 and Q5_1: scale and minimum map the smallest element to 0, the largest to the highest level."""
    highest, has_high = (1 << bits) - 1, bits == 5
    data = 8 if has_high else 4

    def maker(layer: Layer) -> Any:
        half_bits = layer.half_bits

        @helper
        def quantize(source, target):
            low, high = _limits(source)
            scale = (high - low) / _F32(highest)
            inverse = _reciprocal(scale)
            store(target, half_bits(scale))
            store(target + 2, half_bits(low))
            high_bits = 0
            for i in range(GROUP // 2):
                first = _whole((load(_F32, source + 4 * i) - low) * inverse + _F32(0.5), highest)
                second = _whole((load(_F32, source + 4 * i + 64) - low) * inverse + _F32(0.5), highest)
                _store_pair(target + data, i, first, second)
                high_bits |= ((first >> 4) << i) | ((second >> 4) << (i + 16))
            if has_high:
                store(target + 4, _U32(high_bits))

        return quantize

    return maker


_BLOCK_ENCODERS = {
    "Q8_0": _q8_0,
    "Q4_0": _symmetric(4),
    "Q5_0": _symmetric(5),
    "Q4_1": _with_minimum(4),
    "Q5_1": _with_minimum(5),
}
