"""Products of matrices, also of matrices chosen by index.

Belongs here: MUL_MAT, MUL_MAT_ID, ADD_ID, OUT_PROD. Must not be here: anything else.

Indices come from data, so they are checked here and not with the graph.
"""

from __future__ import annotations

import numpy as np

from rpc_backend.plugin_api import Tensor
from rpc_backend_reference.arrays import cells, decode, floats, store
from rpc_backend_reference.ops_rows import checked


def mul_mat(node: Tensor) -> None:
    """Each row of `b` times each row of `a`; heads of `a` repeat in runs: `a` head = `b` head · a2 // b2."""
    a, b = floats(node.sources[0]), floats(node.sources[1])
    (a3, a2, m, k), (b3, b2, n, _) = a.shape, b.shape
    grouped = b.reshape(a3, b3 // a3, a2, b2 // a2, n, k)
    product = grouped @ a.reshape(a3, 1, a2, 1, m, k).swapaxes(-1, -2)
    store(node, product.reshape(b3, b2, n, m))


def mul_mat_id(node: Tensor) -> None:
    """Each row of `b` times the rows of the matrix that its id names; rows of `b` repeat over the ids of a token.

    Raises:
        ComputeError: an id that is not one of the matrices.
    """
    experts, b, ids = node.sources
    stacked, x = cells(experts)[0], floats(b)[0]
    index = checked(node, ids, len(stacked))[0]
    result = np.empty((*index.shape, experts.ne[1]), np.float32)
    for expert in np.unique(index):
        matrix = decode(experts.type, stacked[expert])
        tokens, slots = np.nonzero(index == expert)
        result[tokens, slots] = x[tokens, slots % b.ne[1]] @ matrix.T
    store(node, result[None])


def add_id(node: Tensor) -> None:
    """Each row of `a` plus the row of `b` that its id names.

    Raises:
        ComputeError: an id that is not one of the rows.
    """
    a, b, ids = node.sources
    index = checked(node, ids, b.ne[1])[0]
    store(node, floats(a) + floats(b)[0, 0][index][None])


def out_prod(node: Tensor) -> None:
    """The sum over rows of each row of `b` times each row of `a`; matrices of `a` repeat in runs."""
    a, b = (floats(source) for source in node.sources)
    repeated = np.repeat(np.repeat(a, b.shape[0] // a.shape[0], axis=0), b.shape[1] // a.shape[1], axis=1)
    store(node, b.swapaxes(-1, -2) @ repeated)
