"""From operations to kernel calls: one lowering per operation of the op table.

Belongs here: the table. Must not be here: single operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rpc_backend.plugin_api import Tensor
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.lowering import (
    attention,
    copies,
    elementwise,
    experts,
    images,
    mixes,
    places,
    products,
    rows,
    states,
)


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
    "SSM_SCAN": Lowering(states.supports_scan, states.ssm_scan),
    "RWKV_WKV6": Lowering(states.supports_rwkv, states.rwkv_wkv6),
    "RWKV_WKV7": Lowering(states.supports_rwkv, states.rwkv_wkv7),
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
    "CONV_TRANSPOSE_1D": Lowering(images.supports, images.conv_transpose_1d),
    "IM2COL": Lowering(images.supports, images.im2col),
    "IM2COL_3D": Lowering(images.supports, images.im2col_3d),
    "COL2IM_1D": Lowering(images.supports, images.col2im_1d),
    "CONV_2D": Lowering(images.supports, images.conv_2d),
    "CONV_3D": Lowering(images.supports, images.conv_3d),
    "CONV_2D_DW": Lowering(images.supports, images.conv_2d_dw),
    "CONV_TRANSPOSE_2D": Lowering(images.supports, images.conv_transpose_2d),
    "POOL_1D": Lowering(images.supports, images.pool_1d),
    "POOL_2D": Lowering(images.supports, images.pool_2d),
    "UPSCALE": Lowering(images.supports, images.upscale),
    "PAD_REFLECT_1D": Lowering(images.supports, images.pad_reflect_1d),
    "WIN_PART": Lowering(images.supports, images.win_part),
    "WIN_UNPART": Lowering(images.supports, images.win_unpart),
    "GET_REL_POS": Lowering(images.supports, images.get_rel_pos),
    "ADD_REL_POS": Lowering(images.supports_add, images.add_rel_pos),
    "LIGHTNING_INDEXER": Lowering(mixes.supports_indexer, mixes.lightning_indexer),
    "DSV4_HC_COMB": Lowering(mixes.supports, mixes.hc_comb),
    "DSV4_HC_PRE": Lowering(mixes.supports, mixes.hc_pre),
    "DSV4_HC_POST": Lowering(mixes.supports, mixes.hc_post),
    "SOFT_MAX": Lowering(attention.supports_soft_max, attention.soft_max),
    "ROPE": Lowering(attention.supports_rope, attention.rope),
    "FLASH_ATTN_EXT": Lowering(attention.supports_flash, attention.flash),
}
