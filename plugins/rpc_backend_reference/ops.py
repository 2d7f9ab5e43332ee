"""The table of operations: name → what runs it, and which element types it takes.

Belongs here: the table. Must not be here: operations themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rpc_backend.plugin_api import Tensor
from rpc_backend_reference import (
    ops_attention,
    ops_images,
    ops_layout,
    ops_math,
    ops_mixes,
    ops_places,
    ops_products,
    ops_rows,
    ops_states,
)
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


def _indexes(node: Tensor) -> bool:
    return node.sources[1].type in FLOATS or node.sources[1].type.is_quantized


def _encodes(node: Tensor) -> bool:
    return node.type in ENCODABLE


KERNELS = {
    "DUP": Kernel(ops_layout.copy, ops_layout.copies),
    "ADD": Kernel(ops_math.binary(np.add)),
    "ADD_ID": Kernel(ops_products.add_id),
    "ADD1": Kernel(ops_math.binary(np.add)),
    "ACC": Kernel(ops_places.overwrite(add=True)),
    "SUB": Kernel(ops_math.binary(np.subtract)),
    "MUL": Kernel(ops_math.binary(np.multiply)),
    "DIV": Kernel(ops_math.binary(np.divide)),
    "SQR": Kernel(ops_math.function(np.square)),
    "SQRT": Kernel(ops_math.function(np.sqrt)),
    "LOG": Kernel(ops_math.function(np.log)),
    "SIN": Kernel(ops_math.function(np.sin)),
    "COS": Kernel(ops_math.function(np.cos)),
    "SUM": Kernel(ops_math.total),
    "SUM_ROWS": Kernel(ops_math.sum_rows),
    "CUMSUM": Kernel(ops_math.cumsum),
    "MEAN": Kernel(ops_math.mean),
    "ARGMAX": Kernel(ops_rows.argmax),
    "COUNT_EQUAL": Kernel(ops_math.count_equal),
    "REPEAT": Kernel(ops_layout.repeat),
    "CONCAT": Kernel(ops_layout.concat),
    "NORM": Kernel(ops_math.norm),
    "RMS_NORM": Kernel(ops_math.rms_norm),
    "GROUP_NORM": Kernel(ops_math.group_norm),
    "L2_NORM": Kernel(ops_math.l2_norm),
    "MUL_MAT": Kernel(ops_products.mul_mat, _first_is_readable),
    "MUL_MAT_ID": Kernel(ops_products.mul_mat_id, _first_is_readable),
    "OUT_PROD": Kernel(ops_products.out_prod),
    "SCALE": Kernel(ops_math.scale),
    "SET": Kernel(ops_places.overwrite(add=False)),
    "CPY": Kernel(ops_layout.copy, ops_layout.copies),
    "CONT": Kernel(ops_layout.copy, ops_layout.copies),
    "RESHAPE": Kernel(_only_describes),
    "VIEW": Kernel(_only_describes),
    "PERMUTE": Kernel(_only_describes),
    "TRANSPOSE": Kernel(_only_describes),
    "GET_ROWS": Kernel(ops_rows.get_rows, _rows_are_readable),
    "SET_ROWS": Kernel(ops_rows.set_rows, _encodes),
    "DIAG": Kernel(ops_places.diagonal),
    "DIAG_MASK_INF": Kernel(ops_places.diagonal_mask(-np.inf)),
    "DIAG_MASK_ZERO": Kernel(ops_places.diagonal_mask(0.0)),
    "SOFT_MAX": Kernel(ops_attention.soft_max),
    "ROPE": Kernel(ops_attention.rope),
    "CLAMP": Kernel(ops_math.clamp),
    "CONV_TRANSPOSE_1D": Kernel(ops_images.conv_transpose_1d),
    "IM2COL": Kernel(ops_images.im2col),
    "IM2COL_3D": Kernel(ops_images.im2col_3d),
    "COL2IM_1D": Kernel(ops_images.col2im_1d),
    "CONV_2D": Kernel(ops_images.conv_2d),
    "CONV_3D": Kernel(ops_images.conv_3d),
    "CONV_2D_DW": Kernel(ops_images.conv_2d_dw),
    "CONV_TRANSPOSE_2D": Kernel(ops_images.conv_transpose_2d),
    "POOL_1D": Kernel(ops_images.pool_1d),
    "POOL_2D": Kernel(ops_images.pool_2d),
    "UPSCALE": Kernel(ops_images.upscale),
    "PAD": Kernel(ops_places.pad),
    "PAD_REFLECT_1D": Kernel(ops_images.pad_reflect_1d),
    "ROLL": Kernel(ops_places.roll),
    "ARANGE": Kernel(ops_places.arange),
    "TIMESTEP_EMBEDDING": Kernel(ops_places.timestep_embedding),
    "ARGSORT": Kernel(ops_rows.argsort),
    "TOP_K": Kernel(ops_rows.top_k),
    "LEAKY_RELU": Kernel(ops_math.leaky_relu),
    "TRI": Kernel(ops_places.triangle),
    "FILL": Kernel(ops_places.fill),
    "FLASH_ATTN_EXT": Kernel(ops_attention.flash_attn_ext, _attends),
    "SSM_CONV": Kernel(ops_states.ssm_conv),
    "SSM_SCAN": Kernel(ops_states.ssm_scan),
    "WIN_PART": Kernel(ops_images.win_part),
    "WIN_UNPART": Kernel(ops_images.win_unpart),
    "GET_REL_POS": Kernel(ops_images.get_rel_pos),
    "ADD_REL_POS": Kernel(ops_images.add_rel_pos),
    "RWKV_WKV6": Kernel(ops_states.rwkv_wkv6),
    "RWKV_WKV7": Kernel(ops_states.rwkv_wkv7),
    "GATED_LINEAR_ATTN": Kernel(ops_states.gated_linear_attn),
    "SOLVE_TRI": Kernel(ops_states.solve_tri),
    "GATED_DELTA_NET": Kernel(ops_states.gated_delta_net),
    "LIGHTNING_INDEXER": Kernel(ops_mixes.lightning_indexer, _indexes),
    "DSV4_HC_COMB": Kernel(ops_mixes.hc_comb),
    "DSV4_HC_PRE": Kernel(ops_mixes.hc_pre),
    "DSV4_HC_POST": Kernel(ops_mixes.hc_post),
    "UNARY": Kernel(ops_math.unary),
    "GLU": Kernel(ops_math.glu),
}
