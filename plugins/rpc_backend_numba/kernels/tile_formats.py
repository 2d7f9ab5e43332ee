"""How each quantised format gives the weights of interleaved rows, a vector lane per row.

Belongs here: one function per format. Must not be here: products (`simd.tiles`), how rows are interleaved
(`interleave`), or weights of one row (`unpack`).

A format gives `prepare(words, halves, spare)` and `group(words, halves, spare, j)`: the first lane's place among the
words of 4 and of 2 bytes of a block of interleaved rows, memory that `prepare` may fill for `group`, and the number of
a group of 32 in the block. A group is the eight words `q`, four weights each, two scales, for the first and the last
16, and the minimum of formats of one group.

Source: block layouts of ggml (`ggml-common.h`) and their meaning (`dequantize_row_*` in `ggml-quants.c`).
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.formats import FORMATS, GROUP, IQ4_NL_VALUES, MXFP4_VALUES, TILE_ROWS
from rpc_backend_numba.simd import bitcast, convert, helper, load, select, splat, store, vector, zero
from rpc_backend_numba.simd.chunks import Chunk
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.simd.words import (
    load_words,
    words_bits,
    words_flip,
    words_lookup,
    words_merge,
    words_of_bits,
    words_or,
)

_F32, _I32, _U16 = types.float32, types.int32, types.uint16
_R = TILE_ROWS

CHUNKS = {
    "Q4_K": Chunk(16, 32, (0,), 4, (((0, 0, 15),), ((0, 4, 15),))),
    "Q5_K": Chunk(
        16, 160, (0, 4, 8, 12, 16), 20, tuple(((1 + j // 2, j % 2 * 4, 15), (0, j - 4, 16)) for j in range(8))
    ),
    "Q6_K": Chunk(
        18,
        96,
        (0, 4, 8),
        12,
        (
            ((0, 0, 15), (2, -4, 0x30)),
            ((1, 0, 15), (2, -2, 0x30)),
            ((0, 4, 15), (2, 0, 0x30)),
            ((1, 4, 15), (2, 2, 0x30)),
        ),
    ),
}
"""Formats some of whose groups share words: for one column these are read once, in their order."""


def make_groups(layer: Layer, format_name: str) -> tuple[Any, Any]:
    """Return `prepare` and `group` of a format."""
    parts = _Parts(layer)
    if format_name in _NUMBERS:
        prepare = _NUMBERS[format_name](parts)
        return prepare, _prepared_group(parts, format_name, _QUANTS[format_name](parts))
    return _nothing, _plain_group(parts, format_name, _QUANTS[format_name](parts))


class _Parts:
    """What the formats are made of, for one layer: `U32` is a vector of words, a lane per row."""

    def __init__(self, layer: Layer) -> None:
        lanes = layer.lanes
        self.layer, self.F32, self.U32 = layer, layer.F32, vector(types.uint32, lanes)
        self.load_half, self.nbytes = layer.load_half, 4 * lanes
        self.four, self.eight = load_words(lanes, 4, 4 * _R), load_words(lanes, 8, 4 * _R)
        U32, I32 = self.U32, layer.I32

        @helper
        def number(word, shift, mask):
            """Some bits of each word as a float."""
            return convert(_F32, bitcast(I32, (word >> splat(U32, shift)) & splat(U32, mask)))

        self.number = number


@helper
def _nothing(words, halves, spare):
    """All numbers of the block are read where they are used."""


def _plain_group(parts: _Parts, format_name: str, quants: Any) -> Any:
    """One group per block, whose scale and minimum are its first two half-precision numbers."""
    load_half, F32, has_minimum = parts.load_half, parts.F32, FORMATS[format_name].has_minimum

    @helper
    def group(words, halves, spare, j):
        d, m = load_half(halves), zero(F32)
        if has_minimum:
            m = load_half(halves + 2 * _R)
        return quants(words, j), d, d, m

    return group


def _prepared_group(parts: _Parts, format_name: str, quants: Any) -> Any:
    """Scales lie in `spare`, then minimums (`simd.tiles.tile_end_block`)."""
    F32, nbytes = parts.F32, parts.nbytes
    per_group = GROUP // FORMATS[format_name].scale_span

    @helper
    def group(words, halves, spare, j):
        at = spare + nbytes * per_group * j
        return quants(words, j), load(F32, at), load(F32, at + nbytes * (per_group - 1)), zero(F32)

    return group


@helper
def _nibbles(words):
    """Four words as 32 numbers of 4 bits: all the low halves, then all the high ones."""
    return words_bits(words, 0, 15) + words_bits(words, 4, 15)


def _four_bits(offset: int) -> Any:
    def maker(parts: _Parts) -> Any:
        four = parts.four

        @helper
        def quants(words, j):
            return _nibbles(four(words + _R * offset))

        return quants

    return maker


def _five_bits(offset: int) -> Any:
    def maker(parts: _Parts) -> Any:
        four, U32 = parts.four, parts.U32

        @helper
        def quants(words, j):
            high = words_of_bits(load(U32, words + _R * offset))
            return words_or(_nibbles(four(words + _R * (offset + 4))), high, 4)

        return quants

    return maker


def _q8_0(parts: _Parts) -> Any:
    eight = parts.eight

    @helper
    def quants(words, j):
        return words_flip(eight(words + _R * 2), 128)

    return quants


def _iq4_nl(parts: _Parts) -> Any:
    four = parts.four
    lookup = words_lookup(tuple(value + 128 for value in IQ4_NL_VALUES), parts.layer.target.byte_shuffle)

    @helper
    def quants(words, j):
        return lookup(_nibbles(four(words + _R * 2)))

    return quants


def _mxfp4(parts: _Parts) -> Any:
    four = parts.four
    lookup = words_lookup(tuple(value + 128 for value in MXFP4_VALUES), parts.layer.target.byte_shuffle)

    @helper
    def quants(words, j):
        return lookup(_nibbles(four(words + _R)))

    return quants


def _iq4_xs(parts: _Parts) -> Any:
    four = parts.four
    lookup = words_lookup(tuple(value + 128 for value in IQ4_NL_VALUES), parts.layer.target.byte_shuffle)

    @helper
    def quants(words, j):
        return lookup(_nibbles(four(words + _R * (8 + 16 * j))))

    return quants


def _q2_k(parts: _Parts) -> Any:
    eight = parts.eight

    @helper
    def quants(words, j):
        return words_bits(eight(words + _R * (16 + 32 * (j >> 2))), 2 * (j & 3), 3)

    return quants


def _q3_k(parts: _Parts) -> Any:
    eight = parts.eight

    @helper
    def quants(words, j):
        low = words_bits(eight(words + _R * (32 + 32 * (j >> 2))), 2 * (j & 3), 3)
        return words_merge(low, eight(words), (34 - j) & 31, 4)

    return quants


def _q4_k(parts: _Parts) -> Any:
    eight = parts.eight

    @helper
    def quants(words, j):
        taken = eight(words + _R * (16 + 32 * (j >> 1)))
        if j & 1:
            return words_bits(taken, 4, 15)
        return words_bits(taken, 0, 15)

    return quants


def _q5_k(parts: _Parts) -> Any:
    eight = load_words(parts.layer.lanes, 8, 20 * _R)

    @helper
    def quants(words, j):
        low = words_bits(eight(words + _R * (20 + 4 * (j >> 1))), 4 * (j & 1), 15)
        return words_merge(low, eight(words + _R * 16), (36 - j) & 31, 0x10)

    return quants


def _q6_k(parts: _Parts) -> Any:
    eight = load_words(parts.layer.lanes, 8, 12 * _R)

    @helper
    def quants(words, j):
        first, i = words + _R * (18 + 96 * (j >> 2)), j & 3
        low, high = eight(first + _R * 4 * (i & 1)), eight(first + _R * 8)
        if i == 0:
            return words_merge(words_bits(low, 0, 15), high, 4, 0x30)
        if i == 1:
            return words_merge(words_bits(low, 0, 15), high, 2, 0x30)
        if i == 2:
            return words_merge(words_bits(low, 4, 15), high, 0, 0x30)
        return words_merge(words_bits(low, 4, 15), high, 30, 0x30)

    return quants


_QUANTS = {
    "Q4_0": _four_bits(2),
    "Q4_1": _four_bits(4),
    "Q5_0": _five_bits(2),
    "Q5_1": _five_bits(4),
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


def _q2_k_numbers(parts: _Parts) -> Any:
    load_half, number, U32, nbytes = parts.load_half, parts.number, parts.U32, parts.nbytes

    @helper
    def prepare(words, halves, spare):
        d, d_min = load_half(halves + _R * 80), load_half(halves + _R * 82)
        for i in range(16):
            both = load(U32, words + _R * 4 * (i >> 2)) >> splat(U32, 8 * (i & 3))
            store(spare + nbytes * i, d * number(both, 0, 15))
        for i in range(8):
            two = load(U32, words + _R * 4 * (i >> 1)) >> splat(U32, 16 * (i & 1))
            minimums = ((two >> splat(U32, 4)) & splat(U32, 15)) | ((two << splat(U32, 4)) & splat(U32, 15 << 16))
            store(spare + nbytes * (16 + i), minimums)
        store(spare + nbytes * 24, -d_min)

    return prepare


def _q3_k_numbers(parts: _Parts) -> Any:
    load_half, number, U32, F32, nbytes = parts.load_half, parts.number, parts.U32, parts.F32, parts.nbytes

    @helper
    def prepare(words, halves, spare):
        """Of 16 scales the low 4 bits lie in 8 bytes, the high 2 bits in the next 4."""
        d = load_half(halves + _R * 108)
        for i in range(16):
            low = load(U32, words + _R * (96 + 4 * ((i >> 2) & 1))) >> splat(U32, 8 * (i & 3) + 4 * (i >> 3))
            high = load(U32, words + _R * 104) >> splat(U32, 8 * (i & 3) + 2 * (i >> 2))
            both = (low & splat(U32, 15)) | ((high & splat(U32, 3)) << splat(U32, 4))
            store(spare + nbytes * i, d * (number(both, 0, 63) - splat(F32, 32.0)))

    return prepare


def _k4_numbers(parts: _Parts) -> Any:
    """Q4_K and Q5_K: 8 scales and 8 minimums of six bits each share 12 bytes."""
    load_half, number, U32, nbytes = parts.load_half, parts.number, parts.U32, parts.nbytes

    @helper
    def scales(target, factor, four):
        for i in range(4):
            store(target + nbytes * i, factor * number(four, 8 * i, 255))

    @helper
    def pairs(target, four):
        for i in range(2):
            two = four >> splat(U32, 16 * i)
            store(target + nbytes * i, (two & splat(U32, 255)) | ((two & splat(U32, 255 << 8)) << splat(U32, 8)))

    @helper
    def prepare(words, halves, spare):
        a, b, c = load(U32, words + _R * 4), load(U32, words + _R * 8), load(U32, words + _R * 12)
        six, four_bits, top = splat(U32, 0x3F3F3F3F), splat(U32, 0x0F0F0F0F), splat(U32, 0x30303030)
        d = load_half(halves)
        scales(spare, d, a & six)
        scales(spare + 4 * nbytes, d, (c & four_bits) | ((a >> splat(U32, 2)) & top))
        pairs(spare + 8 * nbytes, b & six)
        pairs(spare + 10 * nbytes, ((c >> splat(U32, 4)) & four_bits) | ((b >> splat(U32, 2)) & top))
        store(spare + 12 * nbytes, -load_half(halves + _R * 2))

    return prepare


def _q6_k_numbers(parts: _Parts) -> Any:
    load_half, U32, I32, nbytes = parts.load_half, parts.U32, parts.layer.I32, parts.nbytes

    @helper
    def prepare(words, halves, spare):
        d = load_half(halves)
        for i in range(16):
            word = bitcast(I32, load(U32, words + _R * (2 + 4 * (i >> 2))))
            signed = (word << splat(I32, 24 - 8 * (i & 3))) >> splat(I32, 24)
            store(spare + nbytes * i, d * convert(_F32, signed))

    return prepare


def _mxfp4_numbers(parts: _Parts) -> Any:
    """One byte per row, the exponent of its scale."""
    I32, F32, U8 = parts.layer.I32, parts.F32, vector(types.uint8, parts.layer.lanes)

    @helper
    def prepare(words, halves, spare):
        first = (words - halves) >> 1  # of the lanes, which is what `words` has four times
        exponent = convert(_I32, load(U8, halves - first))
        small = splat(I32, 0x00200000) << exponent
        bits = select(exponent < splat(I32, 2), small, (exponent - splat(I32, 1)) << splat(I32, 23))
        store(spare, bitcast(F32, bits))

    return prepare


def _iq4_xs_numbers(parts: _Parts) -> Any:
    load_half, number, U32, F32, nbytes = parts.load_half, parts.number, parts.U32, parts.F32, parts.nbytes
    U16 = vector(types.uint16, parts.layer.lanes)

    @helper
    def prepare(words, halves, spare):
        d, low = load_half(halves), load(U32, words + _R * 4)
        high = convert(types.uint32, load(U16, halves + _R * 2))
        for i in range(8):
            top = ((high >> splat(U32, 2 * i)) & splat(U32, 3)) << splat(U32, 4)
            both = ((low >> splat(U32, 4 * i)) & splat(U32, 15)) | top
            store(spare + nbytes * i, d * (number(both, 0, 63) - splat(F32, 32.0)))

    return prepare


_NUMBERS = {
    "MXFP4": _mxfp4_numbers,
    "IQ4_XS": _iq4_xs_numbers,
    "Q2_K": _q2_k_numbers,
    "Q3_K": _q3_k_numbers,
    "Q4_K": _k4_numbers,
    "Q5_K": _k4_numbers,
    "Q6_K": _q6_k_numbers,
}
