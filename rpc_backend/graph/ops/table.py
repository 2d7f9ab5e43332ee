"""The op table: one row per operation.

Belongs here: rows. Must not be here: shape rules (`rules`) or the meaning of an operation, which the
reference backend gives. Adding an operation is one row here, a shape rule if none fits, and one function there.

Source: names, numbers and parameter slots are ggml's (`ggml_op`, `ggml_unary_op`, `ggml_glu_op`).
"""

from __future__ import annotations

import hashlib

from rpc_backend.errors import GraphError
from rpc_backend.graph.ops import rules
from rpc_backend.graph.ops.spec import Op, Param


def _f32(*names: str, first: int = 0) -> tuple[Param, ...]:
    return tuple(Param(name, first + i, "f32") for i, name in enumerate(names))


def _i32(*names: str, first: int = 0) -> tuple[Param, ...]:
    return tuple(Param(name, first + i) for i, name in enumerate(names))


_ROPE_PARAMS = (
    *_i32("n_dims", "mode", first=1),
    Param("n_ctx_orig", 4),
    *_f32("freq_base", "freq_scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow", first=5),
)

_ROWS = (
    Op("DUP", 1, 1, 1, rules.same),
    Op("ADD", 2, 2, 2, rules.binary),
    Op("SUB", 6, 2, 2, rules.binary),
    Op("MUL", 7, 2, 2, rules.binary),
    Op("DIV", 8, 2, 2, rules.binary),
    Op("LOG", 11, 1, 1, rules.floats),
    Op("SUM_ROWS", 15, 1, 1, rules.sum_rows),
    Op("CUMSUM", 16, 1, 1, rules.cumsum),
    Op("ARGMAX", 18, 1, 1, rules.argmax),
    Op("REPEAT", 20, 1, 1, rules.repeat),
    Op("CONCAT", 22, 2, 2, rules.concat, _i32("dim")),
    Op("RMS_NORM", 25, 1, 1, rules.floats, _f32("eps")),
    Op("MUL_MAT", 29, 2, 2, rules.mul_mat, _i32("prec")),
    Op("SCALE", 32, 1, 1, rules.floats, _f32("scale", "bias")),
    Op("CPY", 34, 2, 2, rules.copy),
    Op("CONT", 35, 1, 1, rules.same),
    Op("RESHAPE", 36, 1, 1, rules.reshape, moves_data=False),
    Op("VIEW", 37, 1, 1, rules.view, moves_data=False),
    Op("PERMUTE", 38, 1, 1, rules.permute, _i32("axis0", "axis1", "axis2", "axis3"), moves_data=False),
    Op("TRANSPOSE", 39, 1, 1, rules.transpose, moves_data=False),
    Op("GET_ROWS", 40, 2, 2, rules.get_rows),
    Op("SET_ROWS", 42, 3, 3, rules.set_rows),
    Op("SOFT_MAX", 46, 1, 2, rules.soft_max, _f32("scale", "max_bias")),
    Op("ROPE", 48, 2, 3, rules.rope, _ROPE_PARAMS),
    Op("CLAMP", 50, 1, 1, rules.clamp, _f32("min", "max")),
    Op("ARGSORT", 69, 1, 1, rules.argsort, _i32("order")),
    Op("TOP_K", 70, 1, 1, rules.top_k),
    Op("FLASH_ATTN_EXT", 74, 3, 4, rules.flash_attn_ext, _f32("scale", "max_bias", "logit_softcap")),
    Op("UNARY", 91, 1, 1, rules.unary, _i32("function")),
    Op("GLU", 100, 1, 2, rules.glu, _i32("function", "swapped")),
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
