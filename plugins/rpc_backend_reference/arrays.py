"""Tensors as numpy arrays: views of their memory, and conversion from and to every element type.

Belongs here: access to elements. Must not be here: operations.

Axes are ggml's in reverse: a tensor of `ne` [n0, n1, n2, n3] is an array of shape [n3, n2, n1, n0].
"""

from __future__ import annotations

from typing import Any

import gguf.quants
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import quantize as gguf_quantize

from rpc_backend.plugin_api import ElementType, Tensor, element_type, host_bytes

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

F32, F16, BF16, I32 = (element_type(name) for name in ("F32", "F16", "BF16", "I32"))
FLOATS = frozenset({F32, F16, BF16})
ENCODABLE = FLOATS | {element_type(name) for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")}
"""The element types that `encode` can make from floats."""


def cells(tensor: Tensor) -> Array:
    """Return a placed tensor's memory as a strided, writable view.

    Shapes: [n3, n2, n1, n0] of the element type; of a quantised tensor [n3, n2, n1, bytes of a row] uint8.
    """
    n0, n1, n2, n3 = tensor.ne
    s0, s1, s2, s3 = tensor.nb
    dtype = tensor.type.dtype
    if dtype is None:
        dtype, n0, s0 = np.dtype(np.uint8), tensor.type.row_nbytes(n0), 1
    if tensor.n_elements == 0:
        return np.empty((n3, n2, n1, n0), dtype)
    return np.ndarray((n3, n2, n1, n0), dtype, host_bytes(tensor), strides=(s3, s2, s1, s0))


def floats(tensor: Tensor) -> Floats:
    """Return all elements as float32 [n3, n2, n1, n0]; a view of the memory if they are F32."""
    return decode(tensor.type, cells(tensor))


def decode(kind: ElementType, values: Array) -> Floats:
    """Convert cells of an element type to float32; whole rows if it is quantised."""
    if kind is BF16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    if kind.dtype is not None:
        return values.astype(np.float32, copy=False)
    # By blocks: for the row of one token the way of gguf's `dequantize` there costs more than the work.
    blocks = np.ascontiguousarray(values).reshape(-1, kind.block_nbytes)
    floats = getattr(gguf.quants, kind.name).dequantize_blocks(blocks)
    return floats.reshape(*values.shape[:-1], values.shape[-1] // kind.block_nbytes * kind.block_size)


def encode(kind: ElementType, values: Array) -> Array:
    """Convert floats or integers to cells of an element type; whole rows if it is quantised.

    To BF16 and F16 it rounds to nearest even, to integers towards zero.
    """
    if kind is BF16:
        return _bf16_bits(values.astype(np.float32, copy=False))
    if kind.dtype is not None:
        return values.astype(kind.dtype, copy=False)
    return gguf_quantize(np.ascontiguousarray(values, np.float32), GGMLQuantizationType(kind.code))


def store(tensor: Tensor, values: Array) -> None:
    """Write float or integer values [n3, n2, n1, n0] over a tensor, converted to its element type."""
    cells(tensor)[...] = encode(tensor.type, values)


def _bf16_bits(values: Floats) -> npt.NDArray[np.uint16]:
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    quiet_nan = (bits >> 16) | np.uint32(0x40)
    is_nan = (bits & np.uint32(0x7FFF_FFFF)) > np.uint32(0x7F80_0000)
    return np.where(is_nan, quiet_nan, rounded).astype(np.uint16)
