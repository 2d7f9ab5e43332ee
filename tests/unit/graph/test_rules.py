"""Shape rules: what each operation refuses. What they accept is in test_build."""

from __future__ import annotations

import math

import pytest

from rpc_backend.errors import GraphError
from rpc_backend.graph import OPS, Glu, RopeMode, Shape, Unary, build
from rpc_backend.graph.element_types import F16, F32, I32, I64, Q8_0


def _leaf(*ne, kind=F32):
    return build.leaf(kind, ne)


def _rope(a, positions, factors=None, n_dims=4, mode=RopeMode.NORMAL):
    return build.rope(a, positions, factors, n_dims=n_dims, mode=mode)


def _flash(q, k, v, mask=None, **settings):
    return build.flash_attn_ext(q, k, v, mask, 1.0, **settings)


_IDS = _leaf(3, kind=I32)

_REFUSED = {
    "add: not a repeat": (lambda: build.add(_leaf(6, 4), _leaf(4)), "does not repeat into"),
    "add: larger": (lambda: build.add(_leaf(6), _leaf(6, 4)), "does not repeat into"),
    "add: empty into full": (lambda: build.add(_leaf(6, 4), _leaf(6, 0)), "does not repeat into"),
    "add: integers": (lambda: build.add(_leaf(6, kind=I32), _leaf(6)), "must hold floats"),
    "mul: quantised": (lambda: build.mul(_leaf(32), _leaf(32, kind=Q8_0)), "must hold floats"),
    "scale: integers": (lambda: build.scale(_leaf(6, kind=I32), 1.0), "must hold floats"),
    "rms_norm: quantised": (lambda: build.rms_norm(_leaf(32, kind=Q8_0), 1e-5), "must hold floats"),
    "unary: unknown": (lambda: build.build("UNARY", [_leaf(4)], {"function": 99}), r"Unary 99 is not known.*SILU"),
    "unary: integers": (lambda: build.unary(Unary.NEG, _IDS), "must hold floats"),
    "glu: unknown": (lambda: build.build("GLU", [_leaf(4)], {"function": 3}), "Glu 3 is not known"),
    "glu: odd row": (lambda: build.glu(Glu.SWIGLU, _leaf(5)), "cannot be halved"),
    "glu: shapes": (lambda: build.glu(Glu.SWIGLU, _leaf(4), _leaf(6)), "one shape and type"),
    "glu: types": (lambda: build.glu(Glu.SWIGLU, _leaf(4), _leaf(4, kind=F16)), "one shape and type"),
    "cpy: counts": (lambda: build.cpy(_leaf(6), _leaf(5)), "differ in their count"),
    "reshape: counts": (lambda: build.reshape(_leaf(6), (5,)), "another count"),
    "reshape: strided": (lambda: build.reshape(build.transpose(_leaf(6, 2)), (12,)), "not contiguous"),
    "permute: twice": (lambda: build.permute(_leaf(6, 2), 0, 0, 1, 2), "not a permutation"),
    "permute: range": (lambda: build.permute(_leaf(6, 2), 0, 1, 2, 4), "not a permutation"),
    "get_rows: float index": (lambda: build.get_rows(_leaf(4, 9), _leaf(3)), "must be I32 or I64"),
    "get_rows: batch": (lambda: build.get_rows(_leaf(4, 9, 2), _IDS), "does not index rows"),
    "set_rows: half values": (lambda: build.set_rows(_leaf(4, 9), _leaf(4, 3, kind=F16), _IDS), "must be F32"),
    "set_rows: float index": (lambda: build.set_rows(_leaf(4, 9), _leaf(4, 3), _leaf(3)), "must be I32 or I64"),
    "set_rows: width": (lambda: build.set_rows(_leaf(5, 9), _leaf(4, 3), _IDS), "has not the rows of"),
    "set_rows: count": (lambda: build.set_rows(_leaf(4, 9), _leaf(4, 2), _IDS), "does not index the rows"),
    "set_rows: batch": (lambda: build.set_rows(_leaf(4, 9, 2), _leaf(4, 3), _IDS), "has not the rows of"),
    "set_rows: index batch": (
        lambda: build.set_rows(_leaf(4, 9, 3), _leaf(4, 3, 3), _leaf(3, 2, kind=I64)), "does not index the rows",
    ),
    "mul_mat: width": (lambda: build.mul_mat(_leaf(4, 2), _leaf(5, 2)), "differ in their row length"),
    "mul_mat: transposed": (lambda: build.mul_mat(build.transpose(_leaf(2, 4)), _leaf(4, 2)), "is transposed"),
    "mul_mat: batch": (lambda: build.mul_mat(_leaf(4, 2, 2), _leaf(4, 2, 3)), "does not broadcast"),
    "mul_mat: empty batch": (lambda: build.mul_mat(_leaf(4, 2, 0), _leaf(4, 2, 3)), "does not broadcast"),
    "mul_mat: integer b": (lambda: build.mul_mat(_leaf(4, 2), _leaf(4, 2, kind=I32)), "must hold floats"),
    "rope: positions": (lambda: _rope(_leaf(4, 2, 5), _IDS), "no position per token"),
    "rope: float positions": (lambda: _rope(_leaf(4, 2, 3), _leaf(3)), "no position per token"),
    "rope: n_dims": (lambda: _rope(_leaf(4, 2, 3), _IDS, n_dims=6), "n_dims 6 does not fit"),
    "rope: odd n_dims": (lambda: _rope(_leaf(4, 2, 3), _IDS, n_dims=3), "n_dims 3 does not fit"),
    "rope: no n_dims": (lambda: _rope(_leaf(4, 2, 3), _IDS, n_dims=0), "n_dims 0 does not fit"),
    "rope: factors": (lambda: _rope(_leaf(4, 2, 3), _IDS, _leaf(1)), "too few factors"),
    "rope: mode": (
        lambda: build.build("ROPE", [_leaf(4, 2, 3), _IDS], {"n_dims": 4, "mode": 8}), "RopeMode 8 is not known",
    ),
    "soft_max: half": (lambda: build.soft_max(_leaf(4, kind=F16)), "must be F32"),
    "soft_max: mask width": (lambda: build.soft_max(_leaf(4, 3), _leaf(5, 3)), "does not cover"),
    "soft_max: mask rows": (lambda: build.soft_max(_leaf(4, 3), _leaf(4, 2)), "does not cover"),
    "soft_max: mask heads": (lambda: build.soft_max(_leaf(4, 3, 4), _leaf(4, 3, 3)), "does not cover"),
    "soft_max: mask type": (lambda: build.soft_max(_leaf(4, 3), _leaf(4, 3, kind=I32)), "contiguous F16 or F32"),
    "soft_max: mask strided": (
        lambda: build.soft_max(_leaf(4, 3), build.transpose(_leaf(3, 4))), "contiguous F16 or F32",
    ),
    "soft_max: alibi": (lambda: build.soft_max(_leaf(4), max_bias=8.0), "max_bias needs a mask"),
    "flash: half q": (lambda: _flash(_leaf(4, 3, kind=F16), _leaf(4, 5), _leaf(4, 5)), "must be F32"),
    "flash: k width": (lambda: _flash(_leaf(4, 3), _leaf(6, 5), _leaf(4, 5)), "do not fit"),
    "flash: v length": (lambda: _flash(_leaf(4, 3), _leaf(4, 5), _leaf(4, 6)), "do not fit"),
    "flash: heads": (lambda: _flash(_leaf(4, 3, 3), _leaf(4, 5, 2), _leaf(4, 5, 2)), "do not divide"),
    "flash: mask": (lambda: _flash(_leaf(4, 3), _leaf(4, 5), _leaf(4, 5), _leaf(5, 2)), "does not cover"),
    "flash: alibi": (lambda: _flash(_leaf(4, 3), _leaf(4, 5), _leaf(4, 5), max_bias=8.0), "max_bias needs a mask"),
    "concat: axis": (lambda: build.concat(_leaf(4), _leaf(4), 4), "axis 4"),
    "concat: negative axis": (lambda: build.concat(_leaf(4), _leaf(4), -1), "axis -1"),
    "concat: shape": (lambda: build.concat(_leaf(4, 2), _leaf(4, 3), 0), "do not join"),
    "concat: type": (lambda: build.concat(_leaf(4), _leaf(4, kind=F16), 0), "do not join"),
    "repeat: ratio": (lambda: build.repeat(_leaf(4), (6, 1, 1, 1)), "does not repeat into"),
    "sum_rows: half": (lambda: build.sum_rows(_leaf(4, kind=F16)), "must be F32"),
    "cumsum: half": (lambda: build.cumsum(_leaf(4, kind=F16)), "must be F32"),
    "log: integers": (lambda: build.log(_IDS), "must hold floats"),
    "clamp: integers": (lambda: build.clamp(_IDS, 0.0, 1.0), "must hold floats"),
    "clamp: order": (lambda: build.clamp(_leaf(4), 1.0, 0.5), "bounds 1.0 and 0.5 leave nothing"),
    "clamp: NaN": (lambda: build.clamp(_leaf(4), math.nan, 0.5), "bounds nan and 0.5 leave nothing"),
    "argmax: cube": (lambda: build.argmax(_leaf(4, 3, 2)), "must be an F32 matrix"),
    "argmax: empty": (lambda: build.argmax(_leaf(0, 3)), "must be an F32 matrix"),
    "argsort: half": (lambda: build.argsort(_leaf(4, kind=F16)), "must be F32"),
    "argsort: order": (lambda: build.build("ARGSORT", [_leaf(4)], {"order": 2}), "neither 0 nor 1"),
    "top_k: none": (lambda: build.top_k(_leaf(4), 0), "top 0"),
    "top_k: too many": (lambda: build.top_k(_leaf(4), 5), "top 5"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), _REFUSED.values(), ids=_REFUSED)
def test_what_breaks_a_rule_is_refused(make, message):
    with pytest.raises(GraphError, match=message):
        make()


@pytest.mark.parametrize("op_name", ["RESHAPE", "VIEW", "REPEAT", "TOP_K"])
def test_operations_with_a_choice_need_a_wanted_shape(op_name):
    with pytest.raises(GraphError, match="needs the shape of its result"):
        OPS[op_name].rule((_leaf(4),), {}, None)


def test_empty_tensors_are_fine():
    assert build.add(_leaf(6, 0), _leaf(6)).ne == (6, 0, 1, 1)
    assert build.mul_mat(_leaf(4, 2), _leaf(4, 0)).ne == (2, 0, 1, 1)
    assert build.get_rows(_leaf(4, 9), _leaf(0, kind=I32)).ne == (4, 0, 1, 1)
    assert OPS["VIEW"].rule((_leaf(4),), {}, Shape(F32, (0, 1, 1, 1))).ne == (0, 1, 1, 1)
