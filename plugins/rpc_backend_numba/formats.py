"""Quantised block formats as matrix products see them.

Belongs here: what kernels and plans both need to know of a format. Must not be here: numba, or how blocks are
unpacked (`kernels.unpack`).

Source: block layouts of ggml (`ggml-common.h`).
"""

from __future__ import annotations

from dataclasses import dataclass

GROUP = 32
"""Weights are unpacked, and activations quantised, 32 at a time."""


@dataclass(frozen=True, slots=True)
class Format:
    """A weight is `scale * (q - zero_point) + minimum`, q being a byte.

    One scale (and minimum, if `has_minimum`) holds for `scale_span` weights, 32 or 16. `zero_point` is a power of
    two or 0.
    """

    name: str
    block_size: int
    block_nbytes: int
    zero_point: int
    scale_span: int = GROUP
    has_minimum: bool = False

    @property
    def tile_variant(self) -> str:
        """The name of the tile kernel that takes panels of this format."""
        return f"{self.scale_span}{'m' if self.has_minimum else ''}"


FORMATS = {
    item.name: item
    for item in (
        Format("Q4_0", 32, 18, 8),
        Format("Q4_1", 32, 20, 0, has_minimum=True),
        Format("Q5_0", 32, 22, 16),
        Format("Q5_1", 32, 24, 0, has_minimum=True),
        Format("Q8_0", 32, 34, 128),
        Format("IQ4_NL", 32, 18, 128),
        Format("Q2_K", 256, 84, 0, 16, has_minimum=True),
        Format("Q3_K", 256, 110, 4, 16),
        Format("Q4_K", 256, 144, 0, has_minimum=True),
        Format("Q5_K", 256, 176, 0, has_minimum=True),
        Format("Q6_K", 256, 210, 32, 16),
    )
}

IQ4_NL_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

# Activations of one group, for kernels that take one weight row at a time: 32 signed bytes, then a vector of eight
# int32 whose lanes 0 and 4 are minus the sums of the two halves, then four float32: scale, scaled sum of the first
# half, of the second half, of both.
ROW_INPUT_NBYTES = 32 + 32 + 16
ROW_INPUT_SUMS = 32
ROW_INPUT_SCALES = 64

# The same for tiles, in units of four columns: of each column 32 bytes plus 128, then the four float32.
UNIT_COLUMNS = 4
TILE_INPUT_NBYTES = 32 + 16
TILE_INPUT_SCALES = 32
UNIT_NBYTES = UNIT_COLUMNS * TILE_INPUT_NBYTES


def panel_group_nbytes(scale_span: int, has_minimum: bool, lanes: int) -> int:
    """Bytes of one group of 32 weights of `lanes` rows in a panel.

    Per scale span: [weights of four neighbours][row][4] signed bytes, then per row an int32 start value (-128 times
    the sum of the weights), a float32 scale, and a float32 minimum if the format has one.
    """
    spans = GROUP // scale_span
    return lanes * (GROUP + 4 * spans * (3 if has_minimum else 2))
