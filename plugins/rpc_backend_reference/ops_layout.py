"""Copies: the same values in another place, shape or element type.

Belongs here: operations that move elements and compute nothing. Must not be here: anything else.
"""

from __future__ import annotations

import numpy as np

from rpc_backend.plugin_api import Tensor
from rpc_backend_reference.arrays import ENCODABLE, F32, FLOATS, I32, cells, decode, encode
from rpc_backend_reference.ops_math import tiled


def copy(node: Tensor) -> None:
    """Elements of the source in order, converted, over the result's elements in order."""
    source = node.sources[0]
    target = cells(node)
    if source.type is node.type:
        target[...] = cells(source).reshape(target.shape)
        return
    values = cells(source)
    if source.type is not I32:
        values = decode(source.type, values)
    target[...] = encode(node.type, values.reshape(node.ne[::-1]))


def copies(node: Tensor) -> bool:
    """Whether `copy` converts between these element types."""
    source, target = node.sources[0].type, node.type
    if source is target:
        return True
    if source in FLOATS:
        return target in ENCODABLE or (source is F32 and target is I32)
    return target is F32 and (source.is_quantized or source is I32)


def concat(node: Tensor) -> None:
    axis = 3 - int(node.params["dim"])
    cells(node)[...] = np.concatenate([cells(source) for source in node.sources], axis=axis)


def repeat(node: Tensor) -> None:
    target = cells(node)
    target[...] = tiled(cells(node.sources[0]), target.shape)
