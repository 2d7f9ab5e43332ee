"""The table of operations: name → what runs it, and which element types it takes.

Belongs here: the table. Must not be here: operations themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rpc_backend.plugin_api import Tensor
from rpc_backend_reference import ops_attention, ops_layout, ops_math, ops_rows
from rpc_backend_reference.arrays import ENCODABLE, FLOATS, I32


def _always(node: Tensor) -> bool:
    return True


def _only_describes(node: Tensor) -> None:
    """The result is the source's memory seen another way: nothing to do."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """`run` computes a placed node; `supports` says whether it takes a node's element types."""

    run: Callable[[Tensor], None]
    supports: Callable[[Tensor], bool] = _always


def _first_is_readable(node: Tensor) -> bool:
    return node.sources[0].type in FLOATS or node.sources[0].type.is_quantized


def _rows_are_readable(node: Tensor) -> bool:
    return _first_is_readable(node) or node.sources[0].type is I32


def _attends(node: Tensor) -> bool:
    return all(source.type in FLOATS or source.type.is_quantized for source in node.sources[1:3])


def _encodes(node: Tensor) -> bool:
    return node.type in ENCODABLE


KERNELS = {
    "DUP": Kernel(ops_layout.copy, ops_layout.copies),
    "ADD": Kernel(ops_math.binary(np.add)),
    "SUB": Kernel(ops_math.binary(np.subtract)),
    "MUL": Kernel(ops_math.binary(np.multiply)),
    "DIV": Kernel(ops_math.binary(np.divide)),
    "LOG": Kernel(ops_math.log),
    "SUM_ROWS": Kernel(ops_math.sum_rows),
    "CUMSUM": Kernel(ops_math.cumsum),
    "ARGMAX": Kernel(ops_rows.argmax),
    "REPEAT": Kernel(ops_layout.repeat),
    "CONCAT": Kernel(ops_layout.concat),
    "RMS_NORM": Kernel(ops_math.rms_norm),
    "MUL_MAT": Kernel(ops_math.mul_mat, _first_is_readable),
    "SCALE": Kernel(ops_math.scale),
    "CPY": Kernel(ops_layout.copy, ops_layout.copies),
    "CONT": Kernel(ops_layout.copy, ops_layout.copies),
    "RESHAPE": Kernel(_only_describes),
    "VIEW": Kernel(_only_describes),
    "PERMUTE": Kernel(_only_describes),
    "TRANSPOSE": Kernel(_only_describes),
    "GET_ROWS": Kernel(ops_rows.get_rows, _rows_are_readable),
    "SET_ROWS": Kernel(ops_rows.set_rows, _encodes),
    "SOFT_MAX": Kernel(ops_attention.soft_max),
    "ROPE": Kernel(ops_attention.rope),
    "CLAMP": Kernel(ops_math.clamp),
    "ARGSORT": Kernel(ops_rows.argsort),
    "TOP_K": Kernel(ops_rows.top_k),
    "FLASH_ATTN_EXT": Kernel(ops_attention.flash_attn_ext, _attends),
    "UNARY": Kernel(ops_math.unary),
    "GLU": Kernel(ops_math.glu),
}
