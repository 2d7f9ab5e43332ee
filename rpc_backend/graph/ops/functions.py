"""The enumerations that op parameters hold.

Belongs here: numbers with names. Must not be here: their meaning, which the reference backend gives.

Source: ggml's `ggml_unary_op`, `ggml_glu_op` and rope types.
"""

from __future__ import annotations

from enum import IntEnum


class Unary(IntEnum):
    """The functions of UNARY."""

    ABS = 0
    SGN = 1
    NEG = 2
    STEP = 3
    TANH = 4
    ELU = 5
    RELU = 6
    SIGMOID = 7
    GELU = 8
    GELU_QUICK = 9
    SILU = 10
    HARDSWISH = 11
    HARDSIGMOID = 12
    EXP = 13
    EXPM1 = 14
    SOFTPLUS = 15
    GELU_ERF = 16
    XIELU = 17
    FLOOR = 18
    CEIL = 19
    ROUND = 20
    TRUNC = 21


class Glu(IntEnum):
    """The gated units of GLU."""

    REGLU = 0
    GEGLU = 1
    SWIGLU = 2
    SWIGLU_OAI = 3
    GEGLU_ERF = 4
    GEGLU_QUICK = 5
    SWIGLU_CLAMP = 6


class RopeMode(IntEnum):
    """How ROPE pairs elements, and which position turns which pair.

    Neighbours (NORMAL), or the two halves (all others). With sections, a token has four positions (time, height,
    width, one more) and each section of the pairs turns by its own: MROPE one behind the other, IMROPE interleaved,
    VISION with angles that begin anew in each section.
    """

    NORMAL = 0
    NEOX = 2
    MROPE = 8
    VISION = 24
    IMROPE = 40

    @property
    def has_sections(self) -> bool:
        return self in (RopeMode.MROPE, RopeMode.VISION, RopeMode.IMROPE)


class Pool(IntEnum):
    """What a pool makes of its elements."""

    MAX = 0
    MEAN = 1


class Interpolation(IntEnum):
    """How UPSCALE finds what lies between elements."""

    NEAREST = 0
    BILINEAR = 1
    BICUBIC = 2


class Triangle(IntEnum):
    """The part of a matrix that TRI keeps, with or without the diagonal."""

    UPPER_DIAGONAL = 0
    UPPER = 1
    LOWER_DIAGONAL = 2
    LOWER = 3
