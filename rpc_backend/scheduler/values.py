"""Values of tensors as the user sees them: numpy arrays, checked and copied.

Belongs here: what array fits a tensor. Must not be here: devices.

Shapes: numpy's axes are `ne` reversed; BF16 is uint16, a quantised type is its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import GraphError
from rpc_backend.graph import Tensor

Bytes = npt.NDArray[np.uint8]
_BYTE = np.dtype(np.uint8)


def check_array(tensor: Tensor, array: npt.NDArray[Any]) -> None:
    """Check that an array has the element type and the bytes of a tensor.

    Raises:
        GraphError: it does not.
    """
    dtype = tensor.type.dtype or _BYTE
    if array.dtype != dtype or array.nbytes != tensor.nbytes:
        raise GraphError(
            f"{tensor} takes {tensor.nbytes} bytes of {dtype}, the array has {array.nbytes} bytes of {array.dtype}"
        )


def check_readable(tensor: Tensor) -> None:
    """Check that a tensor's bytes are the elements of an array.

    Raises:
        GraphError: there are gaps between them.
    """
    if not tensor.is_contiguous:
        raise GraphError(f"{tensor} has gaps between its elements; make it contiguous (CONT) to read it")


def empty_array(tensor: Tensor) -> npt.NDArray[Any]:
    """Return an array for the values of a tensor."""
    if tensor.type.dtype is None:
        return np.empty(tensor.nbytes, np.uint8)
    return np.empty(tensor.ne[::-1], tensor.type.dtype)


def as_array(tensor: Tensor, data: memoryview) -> npt.NDArray[Any]:
    """Return the bytes of a tensor as an array, without a copy; it is read-only if the bytes are."""
    flat = np.frombuffer(data, tensor.type.dtype or _BYTE)
    return flat if tensor.type.dtype is None else flat.reshape(tensor.ne[::-1])


def names(tensors: Iterable[Tensor]) -> str:
    """Return tensors as text, for messages."""
    return ", ".join(str(tensor) for tensor in tensors) or "none"
