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


class Glu(IntEnum):
    """The gated units of GLU."""

    REGLU = 0
    GEGLU = 1
    SWIGLU = 2
    GEGLU_ERF = 4
    GEGLU_QUICK = 5


class RopeMode(IntEnum):
    """How ROPE pairs elements: neighbours (NORMAL), or the two halves (NEOX)."""

    NORMAL = 0
    NEOX = 2
