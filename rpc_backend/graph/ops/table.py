"""The op table: one row per operation.

Belongs here: rows. Must not be here: shape rules (`rules`) or the meaning of an operation, which the
reference backend gives. Adding an operation is one row here, a shape rule if none fits, and one function there.

Source: names, numbers and parameter slots are ggml's (`ggml_op`, `ggml_unary_op`, `ggml_glu_op`).
"""

from __future__ import annotations

import hashlib

from rpc_backend.errors import GraphError
from rpc_backend.graph.ops import (
    rules,
    rules_images,
    rules_layout,
    rules_mixes,
    rules_products,
    rules_rows,
    rules_states,
)
from rpc_backend.graph.ops.spec import Op, Param


def _f32(*names: str, first: int = 0) -> tuple[Param, ...]:
    return tuple(Param(name, first + i, "f32") for i, name in enumerate(names))


def _i32(*names: str, first: int = 0) -> tuple[Param, ...]:
    return tuple(Param(name, first + i) for i, name in enumerate(names))


def _conv(n_axes: int) -> tuple[Param, ...]:
    """Return the parameters of a convolution: strides of all axes, then paddings, then dilations."""
    return _i32(*(f"{name}{axis}" for name in ("stride", "padding", "dilation") for axis in range(n_axes)))


_ROPE_PARAMS = (
    *_i32("n_dims", "mode", first=1),
    Param("n_ctx_orig", 4),
    *_f32("freq_base", "freq_scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow", first=5),
    *_i32("section0", "section1", "section2", "section3", "n_offset", first=11),
)
_PRODUCT_PARAMS = (*_i32("prec", "hint"), Param("prec_b", 3))
_GLU_PARAMS = (*_i32("function", "swapped"), *_f32("alpha", "limit", first=2))
_XIELU_PARAMS = (*_i32("function"), *_f32("alpha_n", "alpha_p", "beta", "eps", first=1))
_FLASH_PARAMS = (*_f32("scale", "max_bias", "logit_softcap"), *_i32("prec", "n_kv_max", first=3))
_PLACE_PARAMS = _i32("nb1", "nb2", "nb3", "offset", "in_place")
_POOL_PARAMS = _i32("pool", "size0", "size1", "stride0", "stride1", "padding0", "padding1")
_PAD_PARAMS = _i32(
    "before0", "after0", "before1", "after1", "before2", "after2", "before3", "after3", "circular"
)  # fmt: skip

_ROWS = (
    Op("DUP", 1, 1, 1, rules.packed),
    Op("ADD", 2, 2, 2, rules.binary),
    Op("ADD_ID", 3, 3, 3, rules_products.add_id),
    Op("ADD1", 4, 2, 2, rules.add_one),
    Op("ACC", 5, 2, 2, rules_layout.overwrite, _PLACE_PARAMS),
    Op("SUB", 6, 2, 2, rules.binary),
    Op("MUL", 7, 2, 2, rules.binary),
    Op("DIV", 8, 2, 2, rules.binary),
    Op("SQR", 9, 1, 1, rules.floats),
    Op("SQRT", 10, 1, 1, rules.floats),
    Op("LOG", 11, 1, 1, rules.floats),
    Op("SIN", 12, 1, 1, rules.floats),
    Op("COS", 13, 1, 1, rules.floats),
    Op("SUM", 14, 1, 1, rules_rows.total),
    Op("SUM_ROWS", 15, 1, 1, rules_rows.sum_rows),
    Op("CUMSUM", 16, 1, 1, rules_rows.cumsum),
    Op("MEAN", 17, 1, 1, rules_rows.mean),
    Op("ARGMAX", 18, 1, 1, rules_rows.argmax),
    Op("COUNT_EQUAL", 19, 2, 2, rules_rows.count_equal),
    Op("REPEAT", 20, 1, 1, rules.repeat),
    Op("CONCAT", 22, 2, 2, rules.concat, _i32("dim")),
    Op("NORM", 24, 1, 1, rules.floats, _f32("eps")),
    Op("RMS_NORM", 25, 1, 1, rules.floats, _f32("eps")),
    Op("GROUP_NORM", 27, 1, 1, rules_rows.group_norm, (*_i32("n_groups"), *_f32("eps", first=1))),
    Op("L2_NORM", 28, 1, 1, rules.floats, _f32("eps")),
    Op("MUL_MAT", 29, 2, 2, rules_products.mul_mat, _PRODUCT_PARAMS),
    Op("MUL_MAT_ID", 30, 3, 3, rules_products.mul_mat_id, _PRODUCT_PARAMS),
    Op("OUT_PROD", 31, 2, 2, rules_products.out_prod),
    Op("SCALE", 32, 1, 1, rules.floats, _f32("scale", "bias")),
    Op("SET", 33, 2, 2, rules_layout.overwrite, _PLACE_PARAMS),
    Op("CPY", 34, 1, 2, rules.copy),
    Op("CONT", 35, 1, 1, rules.packed),
    Op("RESHAPE", 36, 1, 1, rules.reshape, moves_data=False),
    Op("VIEW", 37, 1, 1, rules.view, moves_data=False),
    Op("PERMUTE", 38, 1, 1, rules.permute, _i32("axis0", "axis1", "axis2", "axis3"), moves_data=False),
    Op("TRANSPOSE", 39, 1, 1, rules.transpose, moves_data=False),
    Op("GET_ROWS", 40, 2, 2, rules.get_rows),
    Op("SET_ROWS", 42, 3, 3, rules.set_rows),
    Op("DIAG", 43, 1, 1, rules_layout.diagonal),
    Op("DIAG_MASK_INF", 44, 1, 1, rules_layout.diagonal_mask, _i32("n_past")),
    Op("DIAG_MASK_ZERO", 45, 1, 1, rules_layout.diagonal_mask, _i32("n_past")),
    Op("SOFT_MAX", 46, 1, 3, rules.soft_max, _f32("scale", "max_bias")),
    Op("ROPE", 48, 2, 3, rules.rope, _ROPE_PARAMS),
    Op("CLAMP", 50, 1, 1, rules.clamp, _f32("min", "max")),
    Op("CONV_TRANSPOSE_1D", 51, 2, 2, rules_images.conv_transpose_1d, _i32("stride0", "padding0", "dilation0")),
    Op("IM2COL", 52, 2, 2, rules_images.im2col, (*_conv(2), Param("is_2d", 6))),
    Op("IM2COL_3D", 54, 2, 2, rules_images.im2col_3d, (*_conv(3), Param("channels", 9))),
    Op("COL2IM_1D", 55, 1, 1, rules_images.col2im_1d, _i32("stride0", "m", "padding0")),
    Op("CONV_2D", 56, 2, 2, rules_images.conv_2d, _conv(2)),
    Op("CONV_3D", 57, 2, 2, rules_images.conv_3d, (*_conv(3), *_i32("channels", "n", "m", first=9))),
    Op("CONV_2D_DW", 58, 2, 2, rules_images.conv_2d_dw, _conv(2)),
    Op("CONV_TRANSPOSE_2D", 59, 2, 2, rules_images.conv_transpose_2d, _i32("stride")),
    Op("POOL_1D", 60, 1, 1, rules_images.pool_1d, _i32("pool", "size0", "stride0", "padding0")),
    Op("POOL_2D", 61, 1, 1, rules_images.pool_2d, _POOL_PARAMS),
    Op("UPSCALE", 63, 1, 1, rules_images.upscale, _i32("mode")),
    Op("PAD", 64, 1, 1, rules_layout.pad, _PAD_PARAMS),
    Op("PAD_REFLECT_1D", 65, 1, 1, rules_images.pad_reflect, _i32("before", "after")),
    Op("ROLL", 66, 1, 1, rules_layout.roll, _i32("shift0", "shift1", "shift2", "shift3")),
    Op("ARANGE", 67, 0, 0, rules_layout.arange, _f32("start", "stop", "step")),
    Op("TIMESTEP_EMBEDDING", 68, 1, 1, rules_layout.timestep_embedding, _i32("dim", "max_period")),
    Op("ARGSORT", 69, 1, 1, rules_rows.argsort, _i32("order")),
    Op("TOP_K", 70, 1, 1, rules_rows.top_k),
    Op("LEAKY_RELU", 71, 1, 1, rules.floats, _f32("slope")),
    Op("TRI", 72, 1, 1, rules_layout.triangle, _i32("triangle")),
    Op("FILL", 73, 1, 1, rules_layout.fill, _f32("value")),
    Op("FLASH_ATTN_EXT", 74, 3, 5, rules.flash_attn_ext, _FLASH_PARAMS),
    Op("SSM_CONV", 76, 2, 2, rules_states.ssm_conv),
    Op("SSM_SCAN", 77, 7, 7, rules_states.ssm_scan, _i32("snapshots")),
    Op("WIN_PART", 78, 1, 1, rules_images.win_part, _i32("windows0", "windows1", "w")),
    Op("WIN_UNPART", 79, 1, 1, rules_images.win_unpart, _i32("w")),
    Op("GET_REL_POS", 80, 1, 1, rules_images.get_rel_pos),
    Op("ADD_REL_POS", 81, 3, 3, rules_images.add_rel_pos, _i32("in_place")),
    Op("RWKV_WKV6", 82, 6, 6, rules_states.rwkv),
    Op("GATED_LINEAR_ATTN", 83, 5, 5, rules_states.gated_linear_attn, _f32("scale")),
    Op("RWKV_WKV7", 84, 7, 7, rules_states.rwkv),
    Op("SOLVE_TRI", 85, 2, 2, rules_states.square_solve),
    Op("GATED_DELTA_NET", 86, 6, 6, rules_states.gated_delta_net, _i32("snapshots")),
    Op("LIGHTNING_INDEXER", 87, 4, 4, rules_mixes.lightning_indexer),
    Op("DSV4_HC_COMB", 88, 3, 3, rules_mixes.hc_comb, (*_f32("eps"), *_i32("n_iter", first=1))),
    Op("DSV4_HC_PRE", 89, 2, 2, rules_mixes.hc_pre, (*_f32("scale"), *_i32("gated", first=1))),
    Op("DSV4_HC_POST", 90, 3, 4, rules_mixes.hc_post),
    Op("UNARY", 91, 1, 1, rules.unary, _XIELU_PARAMS),
    Op("GLU", 100, 1, 2, rules.glu, _GLU_PARAMS),
)

OPS = {row.name: row for row in _ROWS}
_BY_CODE = {row.code: row for row in _ROWS}


def op_of_code(code: int) -> Op:
    """Return the operation of a number.

    Raises:
        GraphError: no such operation.
    """
    found = _BY_CODE.get(code)
    if found is None:
        raise GraphError(f"unknown operation number {code}")
    return found


def op_table_digest() -> str:
    """Return a digest of all rows; two sides with one digest mean the same by every operation."""
    lines = [
        f"{row.code} {row.name} {row.min_sources} {row.max_sources} "
        + " ".join(f"{param.name}:{param.slot}:{param.kind}" for param in row.params)
        for row in _ROWS
    ]
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()
