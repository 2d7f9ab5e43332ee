"""Arithmetic of the reference backend, against formulas written out in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rpc_backend.graph import Glu, Unary, build

_RANDOM = np.random.default_rng(2)


def test_the_second_source_repeats_along_every_axis(compute):
    a = _RANDOM.normal(size=(2, 4, 6)).astype("f4")
    b = _RANDOM.normal(size=(2, 1, 3)).astype("f4")
    for make, function in (
        (build.add, "__add__"),
        (build.sub, "__sub__"),
        (build.mul, "__mul__"),
        (build.div, "__truediv__"),
    ):
        result = compute(make, a, b)
        for i, j, k in np.ndindex(a.shape):
            assert result[i, j, k] == getattr(a[i, j, k], function)(b[i, 0, k % 3])


def test_half_floats_are_rounded_once(compute):
    a, b = np.array([1.0], "f2"), np.array([2.0**-11 + 2.0**-20], "f4")
    assert compute(build.add, a, b)[0] == np.float16(1 + 2.0**-10)


def test_scale_and_bias(compute):
    assert compute(lambda a: build.scale(a, 3.0, -1.0), [0.0, 2.0]).tolist() == [-1.0, 5.0]


def test_rows(compute):
    a = np.array([[3.0, 4.0], [-1.0, 1.0]], "f4")
    assert compute(build.sum_rows, a).tolist() == [[7.0], [0.0]]
    expected = [[3 / math.sqrt(12.5 + 0.5), 4 / math.sqrt(13)], [-1 / math.sqrt(1.5), 1 / math.sqrt(1.5)]]
    assert np.allclose(compute(lambda x: build.rms_norm(x, 0.5), a), expected, rtol=1e-6)


def test_running_sums_are_added_in_order(compute):
    assert compute(build.cumsum, [[1.0, 2.0, 4.0], [-1.0, 0.5, 0.0]]).tolist() == [[1, 3, 7], [-1, -0.5, -0.5]]
    values = _RANDOM.normal(size=300).astype("f4")
    total, expected = np.float32(0), []
    for value in values:
        total += value
        expected.append(total)
    assert compute(build.cumsum, values).tolist() == expected


def test_logarithm_and_its_ends(compute):
    found = compute(build.log, [1.0, math.e, 0.0, -1.0, math.inf, 1e-40])
    assert np.allclose(found[[0, 1, 5]], [0, 1, math.log(1e-40)], rtol=1e-5, atol=1e-7)
    assert (found[2], math.isnan(found[3]), found[4]) == (-math.inf, True, math.inf)


def test_clamp(compute):
    values = [-5.0, -0.5, 0.25, 9.0, math.inf, -math.inf]
    assert compute(lambda a: build.clamp(a, -0.5, 2.0), values).tolist() == [-0.5, -0.5, 0.25, 2, 2, -0.5]
    assert compute(lambda a: build.clamp(a, 3.0, 3.0), values).tolist() == [3.0] * 6
    assert np.isnan(compute(lambda a: build.clamp(a, 0.0, 1.0), [math.nan])[0])


def test_long_sums_are_exact_to_float32(compute):
    values = np.full((1, 100_000), 0.1, "f4")
    assert compute(build.sum_rows, values)[0] == np.float32(np.float64(np.float32(0.1)) * 100_000)


def test_a_product_is_rows_times_rows(compute):
    a, b = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[1.0, 0.0, -1.0]]
    assert compute(build.mul_mat, a, b).tolist() == [-2.0, -2.0]
    b = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
    assert compute(build.mul_mat, a, b).tolist() == [[1, 4], [2, 5], [3, 6], [6, 15]]


def test_heads_of_the_first_repeat_in_runs(compute):
    a, b = _RANDOM.normal(size=(2, 3, 4, 5)), _RANDOM.normal(size=(4, 6, 7, 5))
    result = compute(build.mul_mat, a, b)
    for i3, i2, n, m in np.ndindex(4, 6, 7, 4):
        expected = sum(a[i3 // 2, i2 // 2, m, k] * b[i3, i2, n, k] for k in range(5))
        assert result[i3, i2, n, m] == pytest.approx(expected, rel=1e-4, abs=1e-5)


_AT = {
    # function: values at -2, 0, 1
    Unary.ABS: (2, 0, 1),
    Unary.SGN: (-1, 0, 1),
    Unary.NEG: (2, 0, -1),
    Unary.STEP: (0, 0, 1),
    Unary.TANH: (-0.96402758, 0, 0.76159416),
    Unary.ELU: (-0.86466472, 0, 1),
    Unary.RELU: (0, 0, 1),
    Unary.SIGMOID: (0.11920292, 0.5, 0.73105858),
    Unary.GELU: (-0.04540231, 0, 0.84119199),
    Unary.GELU_QUICK: (-0.06434137, 0, 0.84579577),
    Unary.SILU: (-0.23840584, 0, 0.73105858),
    Unary.HARDSWISH: (-1 / 3, 0, 2 / 3),
    Unary.HARDSIGMOID: (1 / 6, 0.5, 2 / 3),
    Unary.EXP: (0.13533528, 1, 2.71828183),
    Unary.EXPM1: (-0.86466472, 0, 1.71828183),
    Unary.SOFTPLUS: (0.12692801, 0.69314718, 1.31326169),
    Unary.GELU_ERF: (-0.04550026, 0, 0.84134475),
    Unary.XIELU: (0.5 * (-0.86466472 + 2) - 2 * 0.25, 0, 0.75 + 0.25),
    Unary.FLOOR: (-2, 0, 1),
    Unary.CEIL: (-2, 0, 1),
    Unary.ROUND: (-2, 0, 1),
    Unary.TRUNC: (-2, 0, 1),
}


@pytest.mark.parametrize("function", Unary, ids=lambda function: function.name)
def test_known_values_of_each_function(compute, function):
    params = {"alpha_n": 0.5, "alpha_p": 0.75, "beta": 0.25} if function is Unary.XIELU else {}
    result = compute(lambda a: build.unary(function, a, **params), [-2.0, 0.0, 1.0])
    assert np.allclose(result, _AT[function], rtol=1e-6, atol=1e-8)


def test_whole_numbers_are_found_on_the_right_side(compute):
    values = [-2.5, -0.2, 0.5, 1.7]
    for function, expected in (
        (Unary.FLOOR, [-3, -1, 0, 1]), (Unary.CEIL, [-2, 0, 1, 2]), (Unary.ROUND, [-3, 0, 1, 2]),
        (Unary.TRUNC, [-2, 0, 0, 1]),
    ):  # fmt: skip
        assert compute(lambda a, f=function: build.unary(f, a), values).tolist() == expected


def test_single_functions(compute):
    assert compute(build.sqr, [-3.0, 0.5]).tolist() == [9.0, 0.25]
    assert compute(build.sqrt, [9.0, 0.25]).tolist() == [3.0, 0.5]
    assert np.allclose(compute(build.sin, [0.0, 1.0]), [0, math.sin(1)])
    assert np.allclose(compute(build.cos, [0.0, 1.0]), [1, math.cos(1)])
    assert compute(lambda a: build.leaky_relu(a, 0.5), [-2.0, 3.0]).tolist() == [-1.0, 3.0]
    assert compute(build.add1, [1.0, 2.0], [0.5]).tolist() == [1.5, 2.5]


def test_norms(compute):
    a = np.array([[3.0, 5.0], [-1.0, 1.0]], "f4")
    assert np.allclose(compute(lambda x: build.norm(x, 3.0), a), [[-0.5, 0.5], [-0.5, 0.5]])
    assert np.allclose(compute(lambda x: build.l2_norm(x, 1e-6), [[3.0, 4.0]]), [0.6, 0.8])
    assert np.allclose(compute(lambda x: build.l2_norm(x, 10.0), [[3.0, 4.0]]), [0.3, 0.4])


def test_groups_of_channels_are_normed_together(compute):
    a = _RANDOM.normal(size=(1, 5, 2, 3))
    result = compute(lambda x: build.group_norm(x, 2, 0.1), a)  # channels 0 to 2, then 3 and 4
    for channels in (slice(0, 3), slice(3, 5)):
        group = a[0, channels]
        expected = (group - group.mean()) / math.sqrt(group.var() + 0.1)
        assert np.allclose(result[channels], expected, atol=1e-5)


def test_wholes(compute):
    assert compute(build.sum_all, [[1.0, 2.0], [3.0, 4.0]]).tolist() == [10.0]
    assert compute(build.mean, [[1.0, 2.0], [3.0, 5.0]]).tolist() == [[1.5], [4.0]]
    same = compute(build.count_equal, np.array([1, 2, 3, 4], "i4"), np.array([1, 0, 3, 0], "i4"))
    assert (same.tolist(), same.dtype) == ([2], np.int64)


def test_functions_saturate(compute):
    far = [-1e4, 1e4]
    assert compute(lambda a: build.unary(Unary.SILU, a), far).tolist() == [0.0, 1e4]
    assert compute(lambda a: build.unary(Unary.SIGMOID, a), far).tolist() == [0.0, 1.0]
    assert compute(lambda a: build.unary(Unary.EXP, a), far).tolist() == [0.0, math.inf]
    assert compute(lambda a: build.unary(Unary.HARDSIGMOID, a), far).tolist() == [0.0, 1.0]
    assert compute(lambda a: build.unary(Unary.ELU, a), far).tolist() == [-1.0, 1e4]


_GATES = {
    Glu.REGLU: 1.0,
    Glu.GEGLU: 0.84119199, Glu.SWIGLU: 0.73105858, Glu.GEGLU_ERF: 0.84134475, Glu.GEGLU_QUICK: 0.84579577,
}  # fmt: skip


def test_limited_gates(compute):
    def glu(function):
        return lambda gate, value: build.glu(function, gate, value, alpha=2.0, limit=1.5)

    gate, value = [-1.0, 1.0, 9.0], [0.5, -9.0, 9.0]
    kept = [(-1.0, 0.5), (1.0, -1.5), (1.5, 1.5)]
    expected = [g / (1 + math.exp(-2 * g)) * (v + 1) for g, v in kept]
    assert np.allclose(compute(glu(Glu.SWIGLU_OAI), gate, value), expected, rtol=1e-6)
    expected = [g / (1 + math.exp(-g)) * v for g, v in kept]
    assert np.allclose(compute(glu(Glu.SWIGLU_CLAMP), gate, value), expected, rtol=1e-6)


@pytest.mark.parametrize("function", _GATES, ids=lambda function: function.name)
def test_the_gate_is_the_first_half_or_the_second_if_swapped(compute, function):
    gate_first, gate_second = [[1.0, 1.0, 2.0, 3.0]], [[2.0, 3.0, 1.0, 1.0]]
    expected = [2 * _GATES[function], 3 * _GATES[function]]
    assert np.allclose(compute(lambda a: build.glu(function, a), gate_first), expected, rtol=1e-6)
    assert np.allclose(compute(lambda a: build.glu(function, a, swapped=True), gate_second), expected, rtol=1e-6)


def test_of_two_sources_the_gate_is_the_first(compute):
    for swapped in (False, True):
        result = compute(lambda a, b, s=swapped: build.glu(Glu.REGLU, a, b, swapped=s), [-1.0, 2.0], [5.0, 5.0])
        assert result.tolist() == [0.0, 10.0]
