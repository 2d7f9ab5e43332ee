"""From operations to kernel calls: one lowering per operation of the op table.

Belongs here: the table. Must not be here: single operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rpc_backend.plugin_api import Tensor
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering import attention, copies, elementwise, experts, places, products, rows, states


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
    "ADD1": Lowering(elementwise.supports, elementwise.binary),
    "SQR": Lowering(elementwise.supports, elementwise.function),
    "SQRT": Lowering(elementwise.supports, elementwise.function),
    "LEAKY_RELU": Lowering(elementwise.supports, elementwise.function),
    "SIN": Lowering(elementwise.supports, elementwise.wave),
    "COS": Lowering(elementwise.supports, elementwise.wave),
    "UNARY": Lowering(elementwise.supports, elementwise.unary),
    "GLU": Lowering(elementwise.supports, elementwise.glu),
    "LOG": Lowering(elementwise.supports, elementwise.log),
    "CLAMP": Lowering(elementwise.supports, elementwise.clamp),
    "RMS_NORM": Lowering(elementwise.supports, rows.rms_norm),
    "NORM": Lowering(elementwise.supports, rows.norm),
    "L2_NORM": Lowering(elementwise.supports, rows.norm),
    "GROUP_NORM": Lowering(rows.supports_f32, rows.group_norm),
    "SUM": Lowering(rows.supports_f32, rows.total),
    "SUM_ROWS": Lowering(rows.supports_f32, rows.sum_rows),
    "MEAN": Lowering(rows.supports_f32, rows.mean),
    "CUMSUM": Lowering(rows.supports_f32, rows.cumsum),
    "ARGMAX": Lowering(rows.supports_f32, rows.argmax),
    "ARGSORT": Lowering(rows.supports_order, rows.argsort),
    "TOP_K": Lowering(rows.supports_order, rows.top_k),
    "GET_ROWS": Lowering(rows.supports_get_rows, rows.get_rows),
    "SET_ROWS": Lowering(rows.supports_set_rows, rows.set_rows),
    "MUL_MAT": Lowering(products.supports, products.mul_mat),
    "MUL_MAT_ID": Lowering(experts.supports, experts.mul_mat_id),
    "ADD_ID": Lowering(elementwise.supports_add_id, experts.add_id),
    "SSM_CONV": Lowering(states.supports, states.ssm_conv),
    "GATED_DELTA_NET": Lowering(states.supports_packed, states.gated_delta_net),
    "GATED_LINEAR_ATTN": Lowering(states.supports_packed, states.gated_linear_attn),
    "SOLVE_TRI": Lowering(states.supports, states.solve_tri),
    "SET": Lowering(places.supports_packed, places.overwrite),
    "ACC": Lowering(places.supports_packed, places.overwrite),
    "PAD": Lowering(places.supports_f32, places.pad),
    "ROLL": Lowering(places.supports_f32, places.roll),
    "TRI": Lowering(places.supports_f32, places.triangle),
    "DIAG": Lowering(places.supports_f32, places.diagonal),
    "DIAG_MASK_INF": Lowering(places.supports_f32, places.diagonal_mask),
    "DIAG_MASK_ZERO": Lowering(places.supports_f32, places.diagonal_mask),
    "FILL": Lowering(places.supports_fill, places.fill),
    "ARANGE": Lowering(places.supports_f32, places.arange),
    "TIMESTEP_EMBEDDING": Lowering(places.supports_f32, places.timestep_embedding),
    "COUNT_EQUAL": Lowering(places.supports_count, places.count_equal),
    "OUT_PROD": Lowering(places.supports_f32, places.out_prod),
    "SOFT_MAX": Lowering(attention.supports_soft_max, attention.soft_max),
    "ROPE": Lowering(attention.supports_rope, attention.rope),
    "FLASH_ATTN_EXT": Lowering(attention.supports_flash, attention.flash),
}
