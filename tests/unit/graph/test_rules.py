"""Shape rules: what each operation refuses. What they accept is in test_build."""

from __future__ import annotations

import math

import pytest

from rpc_backend.errors import GraphError
from rpc_backend.graph import OPS, Glu, RopeMode, Shape, Triangle, Unary, build
from rpc_backend.graph.element_types import F16, F32, I32, I64, Q8_0


def _leaf(*ne, kind=F32):
    return build.leaf(kind, ne)


def _rope(a, positions, factors=None, n_dims=4, mode=RopeMode.NORMAL, n_offset=0):
    return build.rope(a, positions, factors, n_dims=n_dims, mode=mode, n_offset=n_offset)


def _flash(q, k, v, mask=None, **settings):
    return build.flash_attn_ext(q, k, v, mask, 1.0, **settings)


def _sections(*sections, positions=12, mode=RopeMode.MROPE):
    return build.rope(_leaf(4, 2, 3), _leaf(positions, kind=I32), n_dims=4, mode=mode, sections=sections)


def _experts(experts=None, b=None, ids=None):
    given = (experts or _leaf(8, 5, 4), b or _leaf(8, 1, 3), ids or _leaf(2, 3, kind=I32))
    return build.mul_mat_id(*given)


def _delta(q=None, v=None, gate=None, beta=None, state=None, snapshots=1):
    q, one = q or _leaf(16, 2, 3), _leaf(1, 4, 3)
    return build.gated_delta_net(
        q, q, v or _leaf(16, 4, 3), gate or one, beta or one, state or _leaf(16, 16, 4), snapshots
    )  # fmt: skip


def _scan(x=None, step=None, decay=None, b=None, c=None, ids=None, snapshots=1):
    x, step, decay = x or _leaf(8, 4, 3, 2), step or _leaf(4, 3, 2), decay or _leaf(1, 4)
    one = _leaf(16, 2, 3, 2)
    return build.ssm_scan(
        _leaf(16, 8, 4, 5), x, step, decay, b or one, c or one, ids or _leaf(2, kind=I32), snapshots
    )  # fmt: skip


def _rwkv(k=None, first=None, state=None):
    one = _leaf(16, 2, 3)
    return build.rwkv_wkv6(k or one, one, one, first or _leaf(16, 2), one, state or _leaf(512, 1))


_IDS = _leaf(3, kind=I32)
_PAIR_IDS = _leaf(2, 3, kind=I32)

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
    "glu: unknown": (lambda: build.build("GLU", [_leaf(4)], {"function": 9}), "Glu 9 is not known"),
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
    "set_rows: integers": (lambda: build.set_rows(_leaf(4, 9), _leaf(4, 3, kind=I32), _IDS), "must be F32 or F16"),
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
        lambda: build.build("ROPE", [_leaf(4, 2, 3), _IDS], {"n_dims": 4, "mode": 4}), "RopeMode 4 is not known",
    ),
    "rope: offset": (lambda: _rope(_leaf(8, 2, 3), _IDS, n_offset=6), "n_offset 6"),
    "rope: odd offset": (lambda: _rope(_leaf(8, 2, 3), _IDS, n_offset=1), "n_offset 1"),
    "rope: one position for sections": (lambda: _sections(1, 1, 0, 0, positions=3), "no position per token"),
    "rope: no sections": (lambda: _sections(0, 0, 0, 0), "sections .* do not fit"),
    "rope: negative section": (lambda: _sections(3, -1, 0, 0), "sections .* do not fit"),
    "rope: long sections": (lambda: _sections(3, 1, 1, 99), "sections .* do not fit"),
    "rope: vision part": (lambda: _sections(1, 1, 0, 0, mode=RopeMode.VISION), "turns whole rows"),
    "glu: limit": (lambda: build.glu(Glu.SWIGLU_OAI, _leaf(4), limit=-1.0), "limit -1.0 is not 0 or more"),
    "glu: NaN limit": (lambda: build.glu(Glu.SWIGLU_CLAMP, _leaf(4), limit=math.nan), "limit nan"),
    "cont: counts": (lambda: build.cont(_leaf(6), (5,)), "another count"),
    "cast: no shape": (lambda: build.build("CPY", [_leaf(6)]), "needs the shape"),
    "mul_mat_id: float ids": (lambda: _experts(ids=_leaf(2, 3)), "must be an I32 matrix"),
    "mul_mat_id: ids of other tokens": (lambda: _experts(ids=_leaf(2, 4, kind=I32)), "ids for each of 3 tokens"),
    "mul_mat_id: width": (lambda: _experts(b=_leaf(7, 1, 3)), "differ in their row length"),
    "mul_mat_id: rows": (lambda: _experts(b=_leaf(8, 3, 3)), "do not divide the ids"),
    "mul_mat_id: no rows": (lambda: _experts(b=_leaf(8, 0, 3)), "do not divide the ids"),
    "mul_mat_id: axes": (lambda: _experts(b=_leaf(8, 1, 3, 2)), "three axes"),
    "mul_mat_id: transposed": (lambda: _experts(experts=build.transpose(_leaf(5, 8, 4))), "is transposed"),
    "add_id: width": (lambda: build.add_id(_leaf(5, 2, 3), _leaf(4, 8), _PAIR_IDS), "do not fit"),
    "add_id: ids": (lambda: build.add_id(_leaf(5, 3, 3), _leaf(5, 8), _PAIR_IDS), "no id per row"),
    "out_prod: rows": (lambda: build.out_prod(_leaf(5, 4), _leaf(7, 3)), "differ in their count of rows"),
    "out_prod: batch": (lambda: build.out_prod(_leaf(5, 4, 2), _leaf(7, 4, 3)), "does not broadcast"),
    "group_norm: none": (lambda: build.group_norm(_leaf(4, 3, 2), 0, 1e-5), "0 groups"),
    "group_norm: too many": (lambda: build.group_norm(_leaf(4, 3, 2), 3, 1e-5), "3 groups"),
    "add1: more": (lambda: build.add1(_leaf(4), _leaf(2)), "not a single element"),
    "count_equal: floats": (lambda: build.count_equal(_leaf(4), _leaf(4)), "must be I32 of one shape"),
    "sum: integers": (lambda: build.sum_all(_IDS), "must hold floats"),
    "set: outside": (lambda: build.overwrite(_leaf(8, 4), _leaf(2, 2), (32, 0, 0), 92), "reaches outside"),
    "set: stride outside": (lambda: build.overwrite(_leaf(8, 4), _leaf(2, 2), (2**30, 0, 0), 0), "reaches outside"),
    "set: negative": (lambda: build.overwrite(_leaf(8, 4), _leaf(2, 2), (32, 0, 0), -4), "negative"),
    "set: negative stride": (lambda: build.overwrite(_leaf(8, 4), _leaf(2, 2), (-32, 0, 0), 64), "negative"),
    "set: odd offset": (lambda: build.overwrite(_leaf(8, 4), _leaf(2, 2), (32, 0, 0), 2), "multiples of 4"),
    "set: more than there is": (lambda: build.overwrite(_leaf(4), _leaf(4, 9), (0, 0, 0), 0), "reaches outside"),
    "set: strided": (lambda: build.overwrite(build.transpose(_leaf(4, 8)), _leaf(2), (0, 0, 0), 0), "not contiguous"),
    "pad: negative": (lambda: build.pad(_leaf(4), (-1, 0, 0, 0)), "negative count"),
    "pad: circular": (lambda: build.build("PAD", [_leaf(4)], {"circular": 2}), "neither 0 nor 1"),
    "pad: empty circle": (lambda: build.pad(_leaf(0), (1, 0, 0, 0), circular=True), "is empty"),
    "roll: too far": (lambda: build.roll(_leaf(4, 3), (4, 0, 0, 0)), "are beyond"),
    "tri: square": (lambda: build.tri(_leaf(4, 3), Triangle.LOWER), "is not square"),
    "tri: kind": (lambda: build.build("TRI", [_leaf(4, 4)], {"triangle": 4}), "Triangle 4 is not known"),
    "diag: rows": (lambda: build.diag(_leaf(4, 2)), "more than one row"),
    "diag_mask: past": (lambda: build.diag_mask(_leaf(4, 4), -1), "n_past -1 is negative"),
    "fill: integers": (lambda: build.fill(_IDS, 1.0), "must be F32 or F16"),
    "arange: backwards": (lambda: build.arange(1.0, 0.0, 1.0), "has no end"),
    "arange: no step": (lambda: build.arange(0.0, 1.0, 0.0), "has no end"),
    "arange: NaN": (lambda: build.arange(0.0, math.nan, 1.0), "has no end"),
    "arange: endless": (lambda: build.arange(0.0, math.inf, 1.0), "has no end"),
    "arange: too many": (lambda: build.arange(-3e38, 3e38, 1e-38), "numbers, more than"),
    "timestep: dim": (lambda: build.timestep_embedding(_leaf(4), 0), "dim 0"),
    "timestep: rows": (lambda: build.timestep_embedding(_leaf(4, 2), 8), "not one row"),
    "solve_tri: square": (lambda: build.solve_tri(_leaf(4, 3), _leaf(2, 3)), "do not fit"),
    "ssm_conv: short": (lambda: build.ssm_conv(_leaf(2, 5), _leaf(4, 5)), "shorter than"),
    "ssm_conv: channels": (lambda: build.ssm_conv(_leaf(9, 5), _leaf(4, 6)), "do not fit"),
    "ssm_conv: no kernel": (lambda: build.ssm_conv(_leaf(9, 5), _leaf(0, 5)), "shorter than"),
    "delta: heads": (lambda: _delta(q=_leaf(16, 3, 3)), "do not fit"),
    "delta: no heads": (lambda: _delta(q=_leaf(16, 0, 3)), "do not fit"),
    "delta: gate": (lambda: _delta(gate=_leaf(2, 4, 3)), "no gate per head"),
    "delta: beta": (lambda: _delta(beta=_leaf(16, 4, 3)), "no factor per head"),
    "delta: state": (lambda: _delta(state=_leaf(16, 16, 2)), "not a state per head"),
    "delta: snapshots": (lambda: _delta(snapshots=0), "0 snapshots"),
    "delta: half": (lambda: _delta(v=_leaf(16, 4, 3, kind=F16)), "must be F32"),
    "linear attention: streams": (
        lambda: build.gated_linear_attn(*[_leaf(16, 2, 3)] * 4, _leaf(512, 2), 1.0), "not a state per stream",
    ),
    "linear attention: shapes": (
        lambda: build.gated_linear_attn(*[_leaf(16, 2, 3)] * 3, _leaf(16, 2, 4), _leaf(512, 1), 1.0), "differ in shape",
    ),
    "scan: x": (lambda: _scan(x=_leaf(8, 3, 3, 2)), "does not fit"),
    "scan: step": (lambda: _scan(step=_leaf(4, 2, 2)), "no step per head"),
    "scan: decay": (lambda: _scan(decay=_leaf(2, 4)), "no decay per head"),
    "scan: b": (lambda: _scan(b=_leaf(16, 2, 2, 2)), "do not fit"),
    "scan: groups": (lambda: _scan(b=_leaf(16, 3, 3, 2), c=_leaf(16, 3, 3, 2)), "for each of 3 groups"),
    "scan: no groups": (lambda: _scan(b=_leaf(16, 0, 3, 2), c=_leaf(16, 0, 3, 2)), "for each of 0 groups"),
    "scan: ids": (lambda: _scan(ids=_leaf(3, kind=I32)), "no state per stream"),
    "scan: ids of floats": (lambda: _scan(ids=_leaf(2)), "no state per stream"),
    "scan: snapshots": (lambda: _scan(snapshots=0), "0 snapshots"),
    "scan: snapshots and decays": (lambda: _scan(decay=_leaf(16, 4), snapshots=2), "one decay per head"),
    "scan: half": (lambda: _scan(x=_leaf(8, 4, 3, 2, kind=F16)), "must be F32"),
    "rwkv: shapes": (lambda: _rwkv(k=_leaf(16, 2, 4)), "differ in shape"),
    "rwkv: first": (lambda: _rwkv(first=_leaf(16, 3)), "no factor per element"),
    "rwkv: state": (lambda: _rwkv(state=_leaf(512, 2)), "not a state per stream"),
    "rwkv: state size": (lambda: _rwkv(state=_leaf(500, 1)), "not a state per stream"),
    "rwkv: no streams": (lambda: _rwkv(state=_leaf(512, 0)), "not a state per stream"),
    "soft_max: sinks": (lambda: build.soft_max(_leaf(4, 3, 2), _leaf(4, 3), sinks=_leaf(3)), "not one F32 per head"),
    "soft_max: sinks without mask": (lambda: build.soft_max(_leaf(4, 3, 2), sinks=_leaf(2)), "sinks need a mask"),
    "flash: sinks": (
        lambda: _flash(_leaf(4, 3), _leaf(4, 5), _leaf(4, 5), _leaf(5, 3), sinks=_leaf(2)), "not one F32 per head",
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
