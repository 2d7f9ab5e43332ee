"""Constructors: shapes, strides and parameters of what they make."""

from __future__ import annotations

import pytest

from rpc_backend.errors import GraphError
from rpc_backend.graph import Glu, RopeMode, Unary, build
from rpc_backend.graph.element_types import F16, F32, I32, I64, Q8_0


def _leaf(*ne, kind=F32):
    return build.leaf(kind, ne)


def test_element_wise_results_are_shaped_like_the_first_source():
    a = _leaf(6, 4, 2)
    for result in (
        build.add(a, _leaf(6)), build.sub(a, a), build.mul(a, _leaf(3, 2)), build.div(a, _leaf(1)),
        build.scale(a, 2.0, 1.0), build.rms_norm(a, 1e-5), build.unary(Unary.SILU, a), build.dup(a), build.cont(a),
    ):  # fmt: skip
        assert (result.type, result.ne) == (F32, (6, 4, 2, 1))
        assert result.is_contiguous
        assert result.view_src is None


def test_products_and_rows():
    assert build.mul_mat(_leaf(64, 5, 2, kind=Q8_0), _leaf(64, 3, 6, 2)).ne == (5, 3, 6, 2)
    picked = build.get_rows(_leaf(64, 9, kind=Q8_0), _leaf(4, kind=I32))
    assert (picked.type, picked.ne) == (F32, (64, 4, 1, 1))
    assert build.get_rows(_leaf(3, 9, kind=I32), _leaf(4, kind=I32)).type is I32
    assert build.sum_rows(_leaf(7, 3)).ne == (1, 3, 1, 1)
    assert (build.argmax(_leaf(7, 3)).type, build.argmax(_leaf(7, 3)).ne) == (I32, (3, 1, 1, 1))
    assert build.argsort(_leaf(7, 3), descending=True).params == {"order": 1}
    assert build.top_k(_leaf(7, 3), 2).ne == (2, 3, 1, 1)


def test_attention():
    q, k, v = _leaf(32, 5, 6), _leaf(32, 40, 2, kind=F16), _leaf(16, 40, 2, kind=F16)
    mask = _leaf(40, 8, kind=F16)
    result = build.flash_attn_ext(q, k, v, mask, 0.125, max_bias=8.0, logit_softcap=2.0)
    assert (result.type, result.ne) == (F32, (16, 6, 5, 1))
    assert result.params == {"scale": 0.125, "max_bias": 8.0, "logit_softcap": 2.0, "prec": 0, "n_kv_max": 0}
    assert build.flash_attn_ext(q, k, v, mask, 0.125, sinks=_leaf(6)).sources[4].ne == (6, 1, 1, 1)
    assert len(build.soft_max(_leaf(40, 5, 6), mask, sinks=_leaf(6)).sources) == 3
    assert build.soft_max(_leaf(40, 5, 6), mask, 0.5).ne == (40, 5, 6, 1)
    rotated = build.rope(_leaf(64, 2, 5), _leaf(5, kind=I32), n_dims=32, mode=RopeMode.NEOX, freq_base=1e6)
    assert (rotated.params["n_dims"], rotated.params["mode"], rotated.params["freq_base"]) == (32, 2, 1e6)
    assert rotated.params["attn_factor"] == 1.0


def test_gated_units_halve_a_single_source():
    assert build.glu(Glu.SWIGLU, _leaf(8, 3)).ne == (4, 3, 1, 1)
    assert build.glu(Glu.GEGLU, _leaf(8, 3), _leaf(8, 3)).ne == (8, 3, 1, 1)
    assert build.glu(Glu.REGLU, _leaf(8, 3), swapped=True).params["swapped"] == 1
    limited = build.glu(Glu.SWIGLU_OAI, _leaf(8, 3), _leaf(8, 3), alpha=0.5, limit=7.0)
    assert limited.params == {"function": 3, "swapped": 0, "alpha": 0.5, "limit": 7.0}


def test_experts():
    experts, ids = _leaf(32, 5, 8, kind=Q8_0), _leaf(2, 3, kind=I32)
    assert build.mul_mat_id(experts, _leaf(32, 1, 3), ids).ne == (5, 2, 3, 1)
    assert build.mul_mat_id(experts, _leaf(32, 2, 3), ids).ne == (5, 2, 3, 1)
    assert build.add_id(_leaf(5, 2, 3), _leaf(5, 8), ids).ne == (5, 2, 3, 1)
    assert build.out_prod(_leaf(5, 4), _leaf(7, 4, 2)).ne == (5, 7, 2, 1)


def test_states():
    assert build.ssm_conv(_leaf(9, 5, 2), _leaf(4, 5)).ne == (5, 6, 2, 1)
    q, v = _leaf(16, 2, 3), _leaf(16, 4, 3)
    gate, state = _leaf(1, 4, 3), _leaf(16, 16, 4)
    assert build.gated_delta_net(q, q, v, gate, gate, state, 2).ne == (64, 3 + 2 * 16, 1, 1)
    assert build.gated_linear_attn(q, q, q, q, _leaf(512, 3), 1.0).ne == (32, 3 + 3 * 16, 1, 1)
    assert build.solve_tri(_leaf(4, 4), _leaf(7, 4)).ne == (7, 4, 1, 1)
    x, step, b, ids = _leaf(8, 4, 3, 2), _leaf(4, 3, 2), _leaf(16, 2, 3, 2), _leaf(2, kind=I32)
    scanned = build.ssm_scan(_leaf(16, 8, 4, 5), x, step, _leaf(1, 4), b, b, ids, 3)
    assert scanned.ne == (8 * 4 * 3 * 2 + 3 * 16 * 8 * 4 * 2, 1, 1, 1)
    assert build.rwkv_wkv6(q, q, q, _leaf(16, 2), q, _leaf(512, 3)).ne == (32, 3 + 3 * 16, 1, 1)
    assert build.rwkv_wkv7(q, q, q, q, q, q, _leaf(512, 1)).ne == (32, 3 + 16, 1, 1)


def test_copies_may_have_other_extents_or_types():
    assert build.cont(build.transpose(_leaf(6, 4)), (12, 2)).ne == (12, 2, 1, 1)
    assert (build.cast(_leaf(6), F16).type, build.cast(_leaf(6), F16).view_src) == (F16, None)


def test_made_and_widened_tensors():
    assert build.arange(0.0, 2.5, 0.5).ne == (5, 1, 1, 1)
    assert build.pad(_leaf(4, 3), (1, 0, 2, 0), (0, 5, 0, 0)).ne == (5, 8, 3, 1)
    assert build.diag(_leaf(4, 1, 3)).ne == (4, 4, 3, 1)
    assert build.timestep_embedding(_leaf(5), 8).ne == (8, 5, 1, 1)
    assert build.sum_all(_leaf(4, 3)).ne == build.count_equal(_leaf(4, kind=I32), _leaf(4, kind=I32)).ne == (1, 1, 1, 1)
    assert build.overwrite(_leaf(8, 4), _leaf(2, 2), (32, 0, 0), 36).ne == (8, 4, 1, 1)


def test_joins():
    assert build.concat(_leaf(4, 3), _leaf(4, 5), 1).ne == (4, 8, 1, 1)
    assert build.repeat(_leaf(4, 1), (8, 3, 2, 1)).ne == (8, 3, 2, 1)


def test_views_share_memory():
    a = _leaf(6, 4, 2)
    permuted = build.permute(a, 1, 2, 0, 3)
    assert (permuted.ne, permuted.nb) == ((2, 6, 4, 1), (96, 4, 24, 192))
    assert permuted.params == {"axis0": 1, "axis1": 2, "axis2": 0, "axis3": 3}
    assert (build.transpose(a).ne, build.transpose(a).nb) == ((4, 6, 2, 1), (24, 4, 96, 192))
    assert build.reshape(a, (12, 4)).nb == (4, 48, 192, 192)
    window = build.view(a, (3, 2), (4, 24, 48, 48), 28)
    assert (window.ne, window.nb, window.view_offs) == ((3, 2, 1, 1), (4, 24, 48, 48), 28)
    for result in (permuted, build.transpose(a), build.reshape(a, (12, 4)), window):
        assert result.view_src is a
        assert result.sources == (a,)


def test_writing_over_a_tensor_gives_a_view_of_it():
    cache = _leaf(8, 10, kind=F16)
    window = build.view(cache, (8, 4), cache.nb, 32)
    copied = build.cpy(_leaf(8, 4), window)
    assert (copied.view_src, copied.view_offs, copied.type, copied.ne) == (cache, 32, F16, (8, 4, 1, 1))
    values, rows = _leaf(8, 2), _leaf(2, kind=I64)
    written = build.set_rows(cache, values, rows)
    assert written.view_src is cache
    assert written.sources == (values, rows, cache)


def test_a_view_must_lie_inside():
    a = _leaf(6, 4)
    for arguments in (((7, 4),), ((6, 4), None, 4), ((6,), None, -4), ((2, 2), (4, 96, 192, 192))):
        with pytest.raises(GraphError, match="reaches outside"):
            build.view(a, *arguments)
