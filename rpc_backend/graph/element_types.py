"""Element types: how many bytes a row takes.

Belongs here: the table of element types. Must not be here: the meaning of quantised blocks, which a
backend knows.

Source: numbers, block sizes and block bytes are those of `ggml_type` (ggml's type traits).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rpc_backend.errors import GraphError


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type: `block_size` elements are stored in `block_nbytes` bytes.

    `dtype` is the numpy type of a plain (not quantised) element; BF16 is carried as uint16 bits.
    """

    name: str
    code: int
    block_size: int
    block_nbytes: int
    dtype: np.dtype | None = None

    @property
    def is_quantized(self) -> bool:
        return self.dtype is None

    @property
    def alignment(self) -> int:
        """Offsets and strides are multiples of so many bytes: of an element, or of a block's widest field."""
        if self.is_quantized:
            return 2 - self.block_nbytes % 2
        return self.block_nbytes

    def row_nbytes(self, n_elements: int) -> int:
        """Return the bytes of `n_elements` stored one after another.

        Raises:
            GraphError: the count is no multiple of the block size.
        """
        blocks, rest = divmod(n_elements, self.block_size)
        if rest:
            raise GraphError(
                f"a row of {n_elements} elements is not a multiple of the {self.block_size} in a block of {self.name}"
            )
        return blocks * self.block_nbytes

    def __repr__(self) -> str:
        return self.name


def _plain(name: str, code: int, dtype: str) -> ElementType:
    kind = np.dtype(dtype)
    return ElementType(name, code, 1, kind.itemsize, kind)


F32 = _plain("F32", 0, "<f4")
F16 = _plain("F16", 1, "<f2")
Q4_0 = ElementType("Q4_0", 2, 32, 18)
Q4_1 = ElementType("Q4_1", 3, 32, 20)
Q5_0 = ElementType("Q5_0", 6, 32, 22)
Q5_1 = ElementType("Q5_1", 7, 32, 24)
Q8_0 = ElementType("Q8_0", 8, 32, 34)
Q2_K = ElementType("Q2_K", 10, 256, 84)
Q3_K = ElementType("Q3_K", 11, 256, 110)
Q4_K = ElementType("Q4_K", 12, 256, 144)
Q5_K = ElementType("Q5_K", 13, 256, 176)
Q6_K = ElementType("Q6_K", 14, 256, 210)
IQ4_NL = ElementType("IQ4_NL", 20, 32, 18)
IQ4_XS = ElementType("IQ4_XS", 23, 256, 136)
I8 = _plain("I8", 24, "<i1")
I16 = _plain("I16", 25, "<i2")
I32 = _plain("I32", 26, "<i4")
I64 = _plain("I64", 27, "<i8")
BF16 = _plain("BF16", 30, "<u2")
MXFP4 = ElementType("MXFP4", 39, 32, 17)

ELEMENT_TYPES = {
    kind.code: kind
    for kind in (
        F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, I8, I16, I32, I64, BF16,
        MXFP4,
    )
}  # fmt: skip

FLOATS = frozenset({F32, F16, BF16})
QUANTIZED = frozenset(kind for kind in ELEMENT_TYPES.values() if kind.is_quantized)
_BY_NAME = {kind.name: kind for kind in ELEMENT_TYPES.values()}


def element_type(key: int | str) -> ElementType:
    """Return the element type of a number or a name in any case.

    Raises:
        GraphError: no such type; the message lists the known ones.
    """
    found = ELEMENT_TYPES.get(key) if isinstance(key, int) else _BY_NAME.get(key.upper())
    if found is None:
        raise GraphError(f"unknown element type {key!r}; known: {', '.join(_BY_NAME)}")
    return found
