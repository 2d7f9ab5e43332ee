"""Quantised block formats as matrix products see them.

Belongs here: what kernels and plans both need to know of a format. Must not be here: numba, or how blocks are
unpacked (`kernels.unpack`).

Source: block layouts of ggml (`ggml-common.h`).
"""

from __future__ import annotations

from dataclasses import dataclass

GROUP = 32
"""Weights are unpacked, and long rows shared by threads, 32 at a time; see `Format.scaled_by_block` for activations."""

BLOCK = 256
"""Activations have one scale per 32, or per 256 for formats whose blocks are so long.

Groups of a block then add up without it: a product has a third less to do beside the dot products of bytes.
"""


@dataclass(frozen=True, slots=True)
class Run:
    """Words at `offset` of a block, `nbytes` each, that go to `place` and on, `step` bytes from each to the next."""

    offset: int
    count: int
    nbytes: int
    place: int
    step: int


def _q5_k_runs() -> tuple[Run, ...]:
    """By turns a word of the high bits, then one of the low bits of each 64 weights: as `_q6_k_runs`."""
    low = (Run(48 + 32 * i, 8, 4, 20 + 4 * i, 20) for i in range(4))
    return (Run(0, 2, 2, 0, 2), Run(4, 3, 4, 4, 4), Run(16, 8, 4, 16, 20), *low)


def _q6_k_runs() -> tuple[Run, ...]:
    """The scales first, then for each 128 weights by turns a word of both halves of the low bits and one of the high.

    So a product reads a block from end to end: memory is fetched ahead only where it is read in its order.
    """
    runs = [Run(208, 1, 2, 0, 2), Run(192, 4, 4, 2, 4)]
    for half in range(2):
        low, high, place = 64 * half, 128 + 32 * half, 18 + 96 * half
        runs += [Run(low, 8, 4, place, 12), Run(low + 32, 8, 4, place + 4, 12), Run(high, 8, 4, place + 8, 12)]
    return tuple(runs)


@dataclass(frozen=True, slots=True)
class Format:
    """A weight is `scale * (q - zero_point) + minimum`, q being a byte.

    `fields` is what a block is made of, in order: how many words of 1, 2 or 4 bytes. One scale (and minimum, if
    `has_minimum`) holds for `scale_span` weights, 32 or 16. `zero_point` is a power of two or 0. `largest` is the
    largest q there can be; above 127 the zero point is 128, so that q less that is a signed byte. `moved` says where
    the words of a block go that do not keep their places when rows are interleaved.
    """

    name: str
    block_size: int
    fields: tuple[tuple[int, int], ...]
    zero_point: int
    largest: int
    scale_span: int = GROUP
    has_minimum: bool = False
    moved: tuple[Run, ...] = ()

    @property
    def block_nbytes(self) -> int:
        return sum(count * nbytes for count, nbytes in self.fields)

    @property
    def runs(self) -> tuple[Run, ...]:
        """All words of a block, each where it is to lie when rows are interleaved."""
        found: list[Run] = []
        offset = 0
        for count, nbytes in self.fields:
            found.append(Run(offset, count, nbytes, offset, nbytes))
            offset += count * nbytes
        return self.moved or tuple(found)

    @property
    def groups(self) -> int:
        """Groups of 32 weights in a block."""
        return self.block_size // GROUP

    @property
    def scaled_by_block(self) -> bool:
        """Whether the activations that it meets have one scale per `BLOCK`, and not one per `GROUP`."""
        return self.block_size == BLOCK


FORMATS = {
    item.name: item
    for item in (
        Format("Q4_0", 32, ((1, 2), (4, 4)), 8, 15),
        Format("Q4_1", 32, ((2, 2), (4, 4)), 0, 15, has_minimum=True),
        Format("Q5_0", 32, ((1, 2), (5, 4)), 16, 31),
        Format("Q5_1", 32, ((2, 2), (5, 4)), 0, 31, has_minimum=True),
        Format("Q8_0", 32, ((1, 2), (8, 4)), 128, 255),
        Format("IQ4_NL", 32, ((1, 2), (4, 4)), 128, 241),
        Format("MXFP4", 32, ((1, 1), (4, 4)), 128, 140),
        Format("IQ4_XS", 256, ((2, 2), (33, 4)), 128, 241),
        Format("Q2_K", 256, ((20, 4), (2, 2)), 0, 3, 16, has_minimum=True),
        Format("Q3_K", 256, ((27, 4), (1, 2)), 4, 7, 16),
        Format("Q4_K", 256, ((2, 2), (35, 4)), 0, 15, has_minimum=True),
        Format("Q5_K", 256, ((2, 2), (43, 4)), 0, 31, has_minimum=True, moved=_q5_k_runs()),
        Format("Q6_K", 256, ((52, 4), (1, 2)), 32, 63, 16, moved=_q6_k_runs()),
    )
}

IQ4_NL_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the numbers, so that they are whole: the scale is halved."""

TILE_ROWS = 16
"""Rows of weights that are interleaved: word w of row r of their blocks lies at 16 times the place of w (`Format.runs`:
most often its offset), plus r words.

So a block of 16 rows takes the bytes of 16 blocks, and each word of it is a vector with one lane per row.
"""

UNIT_COLUMNS = 4
"""Columns of activations that lie together, group by group, for products of many columns."""

RESULT_COLUMNS = 192
"""Columns of results that a product keeps in working memory, at most."""

NUMBERS_NBYTES = 2048
"""Working memory for a tile of 16 columns, or for the scales and minimums of a block of interleaved rows."""

UNPACKED_NBYTES = GROUP * TILE_ROWS
"""The bytes of a group of interleaved rows."""

SPARE_NBYTES = NUMBERS_NBYTES + BLOCK // GROUP * UNPACKED_NBYTES + 4 * TILE_ROWS * RESULT_COLUMNS
"""Working memory of a product: numbers, the groups of a block unpacked, sums of many columns."""

STATE_ROWS = 16
"""Rows of a state that a thread keeps at a time while all tokens pass by."""

# A cell, the activations of one group and column: 32 signed bytes, then, of both kinds, at these places:
# int32 -32 times the sums of the first and of the last 16, float32 their scale, int32 -128 times the sum of all.
INPUT_NBYTES = 64
INPUT_MINUS_32_SUMS, INPUT_SCALE, INPUT_MINUS_128_SUM = 36, 44, 60

# With a scale of its own a cell holds: int32 -8 times the sum of all, float32 this sum times the scale.
INPUT_MINUS_8_SUM, INPUT_SCALED_SUM = 32, 48

# With the scale of a block: pairs of int16, the sums of this group and the next (in the first of each two
# cells), and those of both halves.
INPUT_SUMS_OF_TWO, INPUT_SUMS_OF_HALVES = 32, 48


def zero_point_of_inputs(form: Format, span: int) -> tuple[int, int]:
    """Return where the inputs hold minus the zero point times the sum of a span, and the bits to shift it left.

    Most formats need no shift; below 0 it is one to the right.
    """
    bits = form.zero_point.bit_length() - 1
    if form.scale_span < GROUP:
        return INPUT_MINUS_32_SUMS + 4 * span, bits - 5
    return (INPUT_MINUS_128_SUM, 0) if bits == 7 else (INPUT_MINUS_8_SUM, bits - 3)
