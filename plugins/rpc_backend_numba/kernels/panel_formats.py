"""How each quantised format gives the weights of many rows at once, a vector lane per row.

Belongs here: one function per format. Must not be here: the layout of panels (`simd.tiles`), or weights of one row
(`unpack`).

Each is `fill(block, stride, last, target, spare)`: the address of a block of the first row, the bytes between rows
and the last row there is; the block's groups of 32 weights go to a panel at `target`, and four vectors fit at `spare`.

Source: block layouts of ggml (`ggml-common.h`) and their meaning (`dequantize_row_*` in `ggml-quants.c`).
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.formats import FORMATS, IQ4_NL_VALUES, panel_group_nbytes
from rpc_backend_numba.simd import bitcast, convert, helper, load, splat, store, vector, zero
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.simd.tiles import panel_store
from rpc_backend_numba.simd.words import (
    load_four_words,
    load_word,
    words_bits,
    words_flip,
    words_lookup,
    words_of_bits,
    words_or,
)

_F32, _I32, _U16 = types.float32, types.int32, types.uint16


def make_fill(layer: Layer, format_name: str) -> Any:
    """Return `fill(block, stride, last, target, spare)` of a format."""
    return _MAKERS[format_name](_Parts(layer, format_name))


class _Parts:
    """What the formats are made of, for one layer: `U32` is a vector of words, a lane per row."""

    def __init__(self, layer: Layer, format_name: str) -> None:
        form, lanes = FORMATS[format_name], layer.lanes
        self.layer, self.F32, self.I32, self.U32 = layer, layer.F32, layer.I32, vector(types.uint32, lanes)
        self.vector_nbytes = 4 * lanes
        self.group_nbytes = panel_group_nbytes(form.scale_span, form.has_minimum, lanes)
        native = layer.target.byte_dot
        self.put = panel_store(lanes, form.zero_point, form.scale_span, form.has_minimum, native)
        self.word, self.four = load_word(lanes), load_four_words(lanes)
        self.eight, self.keep_four = self._make_eight(), self._make_keep_four()
        self.halves, self.bits = self._make_halves(), self._make_bits()

    def _make_eight(self) -> Any:
        four = self.four

        @helper
        def eight(address, stride, last):
            return four(address, stride, last) + four(address + 16, stride, last)

        return eight

    def _make_keep_four(self) -> Any:
        four, nbytes = self.four, self.vector_nbytes

        @helper
        def keep_four(address, stride, last, spare):
            a, b, c, d = four(address, stride, last)
            store(spare, a)
            store(spare + nbytes, b)
            store(spare + 2 * nbytes, c)
            store(spare + 3 * nbytes, d)

        return keep_four

    def _make_halves(self) -> Any:
        U32, widen = self.U32, self.layer.half_values

        @helper
        def halves(word):
            """The two half-precision numbers in each word."""
            return widen(convert(_U16, word)), widen(convert(_U16, word >> splat(U32, 16)))

        return halves

    def _make_bits(self) -> Any:
        U32, I32 = self.U32, self.I32

        @helper
        def bits(word, shift, mask):
            return bitcast(I32, (word >> splat(U32, shift)) & splat(U32, mask))

        return bits


@helper
def _nibbles(words):
    """Four words as 32 numbers of 4 bits: all the low halves, then all the high ones."""
    return words_bits(words, 0, 15) + words_bits(words, 4, 15)


def _q4_0(parts: _Parts) -> Any:
    put, word, four, halves, F32 = parts.put, parts.word, parts.four, parts.halves, parts.F32

    @helper
    def fill(block, stride, last, target, spare):
        d, _ = halves(word(block, stride, last))
        put(target, _nibbles(four(block + 2, stride, last)), d, d, zero(F32), zero(F32))

    return fill


def _q4_1(parts: _Parts) -> Any:
    put, word, four, halves = parts.put, parts.word, parts.four, parts.halves

    @helper
    def fill(block, stride, last, target, spare):
        d, m = halves(word(block, stride, last))
        put(target, _nibbles(four(block + 4, stride, last)), d, d, m, m)

    return fill


def _q5_0(parts: _Parts) -> Any:
    put, word, four, halves, F32 = parts.put, parts.word, parts.four, parts.halves, parts.F32

    @helper
    def fill(block, stride, last, target, spare):
        d, _ = halves(word(block, stride, last))
        high = words_of_bits(word(block + 2, stride, last))
        q = words_or(_nibbles(four(block + 6, stride, last)), high, 4)
        put(target, q, d, d, zero(F32), zero(F32))

    return fill


def _q5_1(parts: _Parts) -> Any:
    put, word, four, halves = parts.put, parts.word, parts.four, parts.halves

    @helper
    def fill(block, stride, last, target, spare):
        d, m = halves(word(block, stride, last))
        high = words_of_bits(word(block + 4, stride, last))
        put(target, words_or(_nibbles(four(block + 8, stride, last)), high, 4), d, d, m, m)

    return fill


def _q8_0(parts: _Parts) -> Any:
    put, word, eight, halves, F32 = parts.put, parts.word, parts.eight, parts.halves, parts.F32

    @helper
    def fill(block, stride, last, target, spare):
        d, _ = halves(word(block, stride, last))
        put(target, words_flip(eight(block + 2, stride, last), 128), d, d, zero(F32), zero(F32))

    return fill


def _iq4_nl(parts: _Parts) -> Any:
    put, word, four, halves, F32 = parts.put, parts.word, parts.four, parts.halves, parts.F32
    lookup = words_lookup(tuple(value + 128 for value in IQ4_NL_VALUES), parts.layer.target.byte_shuffle)

    @helper
    def fill(block, stride, last, target, spare):
        d, _ = halves(word(block, stride, last))
        q = lookup(_nibbles(four(block + 2, stride, last)))
        put(target, q, d, d, zero(F32), zero(F32))

    return fill


def _q2_k(parts: _Parts) -> Any:
    put, word, eight, keep_four, halves, bits = (
        parts.put, parts.word, parts.eight, parts.keep_four, parts.halves, parts.bits,
    )  # fmt: skip
    U32, nbytes, group_nbytes = parts.U32, parts.vector_nbytes, parts.group_nbytes

    @helper
    def fill(block, stride, last, target, spare):
        keep_four(block, stride, last, spare)
        d, d_min = halves(word(block + 80, stride, last))
        for half in range(2):
            packed = eight(block + 16 + 32 * half, stride, last)
            for i in range(4):
                j = 4 * half + i
                both = load(U32, spare + nbytes * (j >> 1)) >> splat(U32, 16 * (j & 1))
                put(
                    target + group_nbytes * j,
                    words_bits(packed, 2 * i, 3),
                    d * convert(_F32, bits(both, 0, 15)),
                    d * convert(_F32, bits(both, 8, 15)),
                    -d_min * convert(_F32, bits(both, 4, 15)),
                    -d_min * convert(_F32, bits(both, 12, 15)),
                )

    return fill


def _q3_k(parts: _Parts) -> Any:
    put, word, eight, keep_four, halves, bits = (
        parts.put, parts.word, parts.eight, parts.keep_four, parts.halves, parts.bits,
    )  # fmt: skip
    F32, U32, I32, nbytes, group_nbytes = parts.F32, parts.U32, parts.I32, parts.vector_nbytes, parts.group_nbytes

    @helper
    def scale(low, high, shift):
        """Scales of one half of a group: 4 bits of one word, 2 of another."""
        return convert(_F32, (bits(low, shift, 15) | (bits(high, shift, 3) << splat(I32, 4))) - splat(I32, 32))

    @helper
    def fill(block, stride, last, target, spare):
        keep_four(block + 92, stride, last, spare)  # the last three are the scales
        _, d = halves(word(block + 106, stride, last))
        high_bits = eight(block, stride, last)
        for half in range(2):
            packed = eight(block + 32 + 32 * half, stride, last)
            for i in range(4):
                j = 4 * half + i
                shift = 16 * (i & 1)
                low = load(U32, spare + nbytes * (1 + (i >> 1))) >> splat(U32, shift + 4 * half)
                high = load(U32, spare + nbytes * 3) >> splat(U32, shift + 2 * (j >> 1))
                q = words_or(words_bits(packed, 2 * i, 3), words_bits(high_bits, j, 1), 2)
                d0, d1 = d * scale(low, high, 0), d * scale(low, high, 8)
                put(target + group_nbytes * j, q, d0, d1, zero(F32), zero(F32))

    return fill


def _make_k4_scales(parts: _Parts) -> Any:
    """Return `scales(block, stride, last, spare)` of Q4_K and Q5_K: keep 8 scales and 8 minimums, a byte each.

    Six bits each, they share 12 bytes. The two half-precision numbers before those are returned.
    """
    four, halves, U32, nbytes = parts.four, parts.halves, parts.U32, parts.vector_nbytes

    @helper
    def scales(block, stride, last, spare):
        numbers, a, b, c = four(block, stride, last)
        six, four_bits, top = splat(U32, 0x3F3F3F3F), splat(U32, 0x0F0F0F0F), splat(U32, 0x30303030)
        store(spare, a & six)
        store(spare + nbytes, (c & four_bits) | ((a >> splat(U32, 2)) & top))
        store(spare + 2 * nbytes, b & six)
        store(spare + 3 * nbytes, ((c >> splat(U32, 4)) & four_bits) | ((b >> splat(U32, 2)) & top))
        return halves(numbers)

    return scales


def _q4_k(parts: _Parts) -> Any:
    put, eight, bits, scales = parts.put, parts.eight, parts.bits, _make_k4_scales(parts)
    U32, nbytes, group_nbytes = parts.U32, parts.vector_nbytes, parts.group_nbytes

    @helper
    def fill(block, stride, last, target, spare):
        d, m = scales(block, stride, last, spare)
        for pair in range(4):
            packed = eight(block + 16 + 32 * pair, stride, last)
            numbers, shift = spare + nbytes * (pair >> 1), 16 * (pair & 1)
            for high in range(2):
                scale = d * convert(_F32, bits(load(U32, numbers), shift + 8 * high, 255))
                minimum = -m * convert(_F32, bits(load(U32, numbers + 2 * nbytes), shift + 8 * high, 255))
                q = words_bits(packed, 4 * high, 15)
                put(target + group_nbytes * (2 * pair + high), q, scale, scale, minimum, minimum)

    return fill


def _q5_k(parts: _Parts) -> Any:
    put, eight, bits, scales = parts.put, parts.eight, parts.bits, _make_k4_scales(parts)
    U32, nbytes, group_nbytes = parts.U32, parts.vector_nbytes, parts.group_nbytes

    @helper
    def fill(block, stride, last, target, spare):
        d, m = scales(block, stride, last, spare)
        high_bits = eight(block + 16, stride, last)
        for pair in range(4):
            packed = eight(block + 48 + 32 * pair, stride, last)
            numbers, shift = spare + nbytes * (pair >> 1), 16 * (pair & 1)
            for high in range(2):
                j = 2 * pair + high
                scale = d * convert(_F32, bits(load(U32, numbers), shift + 8 * high, 255))
                minimum = -m * convert(_F32, bits(load(U32, numbers + 2 * nbytes), shift + 8 * high, 255))
                q = words_or(words_bits(packed, 4 * high, 15), words_bits(high_bits, j, 1), 4)
                put(target + group_nbytes * j, q, scale, scale, minimum, minimum)

    return fill


def _q6_k(parts: _Parts) -> Any:
    put, word, eight, keep_four, halves = parts.put, parts.word, parts.eight, parts.keep_four, parts.halves
    F32, I32, nbytes, group_nbytes = parts.F32, parts.I32, parts.vector_nbytes, parts.group_nbytes

    @helper
    def signed_byte(word, place):
        return convert(_F32, (word << splat(I32, 24 - 8 * place)) >> splat(I32, 24))

    @helper
    def fill(block, stride, last, target, spare):
        keep_four(block + 192, stride, last, spare)
        _, d = halves(word(block + 206, stride, last))
        for half in range(2):
            high_bits = eight(block + 128 + 32 * half, stride, last)
            for part in range(2):
                packed = eight(block + 64 * half + 32 * part, stride, last)
                for high in range(2):
                    i = 2 * high + part
                    j = 4 * half + i
                    q = words_or(words_bits(packed, 4 * high, 15), words_bits(high_bits, 2 * i, 3), 4)
                    scales = load(I32, spare + nbytes * (j >> 1))
                    d0, d1 = d * signed_byte(scales, 2 * part), d * signed_byte(scales, 2 * part + 1)
                    put(target + group_nbytes * j, q, d0, d1, zero(F32), zero(F32))

    return fill


_MAKERS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
