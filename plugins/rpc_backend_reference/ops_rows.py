"""Rows by index, and order within rows.

Belongs here: operations that take or give indices. Must not be here: anything else.

Indices come from data, so they are checked here and not with the graph.
"""

from __future__ import annotations

import numpy as np

from rpc_backend.plugin_api import ComputeError, Tensor
from rpc_backend_reference.arrays import I32, Array, cells, decode, encode, floats, store


def get_rows(node: Tensor) -> None:
    """Pick rows of `a` by index; only the rows picked are converted.

    Raises:
        ComputeError: an index outside the rows of `a`.
    """
    source, rows = node.sources
    table = cells(source)
    index = checked(node, rows, table.shape[2])
    if table.shape[:2] == (1, 1):  # tokens and their embeddings: in each step of a decode
        picked = table[0, 0][index]
    else:
        stream, head = np.arange(table.shape[0]), np.arange(table.shape[1])
        picked = table[stream[:, None, None], head[None, :, None], index]
    store(node, picked if source.type is I32 else decode(source.type, picked))


def set_rows(node: Tensor) -> None:
    """Write rows of `values` over rows of the target by index; of an index given twice, one row remains.

    Raises:
        ComputeError: an index outside the rows of the target; nothing is written then.
    """
    values, rows, _ = node.sources
    table = cells(node)
    index = checked(node, rows, table.shape[2])
    stream, head = np.arange(values.ne[3]), np.arange(values.ne[2])
    every = index[stream[:, None] % rows.ne[2], head[None, :] % rows.ne[1]]
    table[stream[:, None, None], head[None, :, None], every] = encode(node.type, floats(values))


def checked(node: Tensor, rows: Tensor, n_rows: int) -> Array:
    """Return the indices [n2, n1, n0] once all are known to be inside.

    Raises:
        ComputeError: one is not.
    """
    index = cells(rows)[0]
    if index.size and not 0 <= index.min() <= index.max() < n_rows:
        outside = index[(index < 0) | (index >= n_rows)]
        name = node.op.name if node.op else "leaf"
        raise ComputeError(f"{name}: row index {outside[0]} is not one of the {n_rows} rows 0 to {n_rows - 1}")
    return index


def argmax(node: Tensor) -> None:
    """The index of the largest element of each row; of equals the first. A NaN is larger than any number."""
    store(node, cells(node.sources[0])[0, 0].argmax(axis=-1))


def argsort(node: Tensor) -> None:
    """The indices that sort each row; of equals the lower index comes first here, but no order is promised."""
    values = cells(node.sources[0])
    store(node, np.argsort(-values if node.params["order"] else values, axis=-1, kind="stable"))


def top_k(node: Tensor) -> None:
    """The indices of the k largest elements of each row, the largest first; of equals the lower index first.

    A NaN is larger than any number.
    """
    values = cells(node.sources[0])
    order = np.lexsort((-values, ~np.isnan(values)), axis=-1)  # by the last key first, stable
    store(node, order[..., : node.ne[0]])
