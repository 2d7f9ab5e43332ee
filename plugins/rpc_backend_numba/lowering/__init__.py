"""From operations to kernel calls: one lowering per operation of the op table.

Belongs here: the table. Must not be here: single operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rpc_backend.plugin_api import Tensor
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering import attention, copies, elementwise, products, rows


@dataclass(frozen=True, slots=True)
class Lowering:
    """`supports` says whether `emit` can add the rows of a checked, placed node that has elements."""

    supports: Callable[[Tensor], bool]
    emit: Callable[[PlanBuilder, Tensor], None]


LOWERINGS = {
    "DUP": Lowering(copies.supports_copy, copies.copy),
    "CPY": Lowering(copies.supports_copy, copies.copy),
    "CONT": Lowering(copies.supports_copy, copies.copy),
    "CONCAT": Lowering(copies.supports_join, copies.concat),
    "REPEAT": Lowering(copies.supports_join, copies.repeat),
    "ADD": Lowering(elementwise.supports, elementwise.binary),
    "SUB": Lowering(elementwise.supports, elementwise.binary),
    "MUL": Lowering(elementwise.supports, elementwise.binary),
    "DIV": Lowering(elementwise.supports, elementwise.binary),
    "SCALE": Lowering(elementwise.supports, elementwise.scale),
    "UNARY": Lowering(elementwise.supports_unary, elementwise.unary),
    "GLU": Lowering(elementwise.supports_glu, elementwise.glu),
    "LOG": Lowering(elementwise.supports, elementwise.log),
    "CLAMP": Lowering(elementwise.supports, elementwise.clamp),
    "RMS_NORM": Lowering(elementwise.supports, rows.rms_norm),
    "SUM_ROWS": Lowering(rows.supports_f32, rows.sum_rows),
    "CUMSUM": Lowering(rows.supports_f32, rows.cumsum),
    "ARGMAX": Lowering(rows.supports_f32, rows.argmax),
    "ARGSORT": Lowering(rows.supports_order, rows.argsort),
    "TOP_K": Lowering(rows.supports_order, rows.top_k),
    "GET_ROWS": Lowering(rows.supports_get_rows, rows.get_rows),
    "SET_ROWS": Lowering(rows.supports_set_rows, rows.set_rows),
    "MUL_MAT": Lowering(products.supports, products.mul_mat),
    "SOFT_MAX": Lowering(attention.supports_soft_max, attention.soft_max),
    "ROPE": Lowering(attention.supports_rope, attention.rope),
    "FLASH_ATTN_EXT": Lowering(attention.supports_flash, attention.flash),
}
