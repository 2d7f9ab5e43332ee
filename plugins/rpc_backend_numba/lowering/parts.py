"""How threads share tensors: what the kernels of element-by-element operations and of inputs touch.

Belongs here: the pieces of `kernels.access` as ranges of bytes. Must not be here: when threads wait (`stages`).
"""

from __future__ import annotations

from rpc_backend.plugin_api import Tensor
from rpc_backend_numba.arguments import Parts
from rpc_backend_numba.formats import GROUP


def shared_parts(tensor: Tensor) -> Parts | None:
    """The parts of a packed tensor whose rows are shared in pieces; None if pieces lie otherwise."""
    if not tensor.is_contiguous or tensor.type.block_size != 1 or tensor.ne[0] % GROUP:
        return None
    return Parts(tensor.n_elements // GROUP, tensor.type.row_nbytes(GROUP))


def row_parts(tensor: Tensor) -> Parts | None:
    """The parts of a packed tensor whose whole rows are shared."""
    return Parts(tensor.n_rows, tensor.type.row_nbytes(tensor.ne[0])) if tensor.is_contiguous else None


def column_parts(tensor: Tensor, together: int, size: int) -> Parts | None:
    """The parts of the activations of a product: so many columns are made ready at a time, `size` elements of each."""
    padded = -(-tensor.ne[1] // together) * together
    if shared_parts(tensor) is None or (padded != tensor.ne[1] and tensor.ne[2] * tensor.ne[3] != 1):
        return None
    return Parts(tensor.ne[0] // size * padded * tensor.ne[2] * tensor.ne[3], tensor.type.row_nbytes(size))
