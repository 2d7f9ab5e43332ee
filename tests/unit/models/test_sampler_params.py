"""What samplers have in common: parameters, the numbers compared with, the uniform numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rpc_backend.errors import ConfigError
from rpc_backend.models.sampler_params import SamplerParams, uniform, uniforms

PINNED = [
    0.011546730995178223,
    0.5023795962333679,
    0.3035680055618286,
    0.20353549718856812,
]  # of uniform(): another sampler draws the same tokens from them


def test_uniform_numbers_stay_as_they_are() -> None:
    found = [float(uniform(seed, index)) for seed, index in ((0, 0), (0, 1), (1, 0), (2**64 - 1, 2**40))]
    assert found == PINNED


def test_uniform_numbers_are_uniform() -> None:
    numbers = np.array([uniform(5, index) for index in range(4000)])
    assert numbers.dtype == np.float32
    assert 0 <= numbers.min() < numbers.max() < 1
    assert np.abs(np.histogram(numbers, 8, (0, 1))[0] - 500).max() < 100


def test_many_uniform_numbers_are_those_of_single_draws() -> None:
    assert uniforms(5, 3, 70).tolist() == [uniform(5, index) for index in range(3, 73)]
    assert uniforms(5, 3, 70).dtype == np.float32


def test_the_numbers_compared_with() -> None:
    params = SamplerParams(temperature=0.7, top_p=0.9, min_p=0.1)
    found = params.inverse_temperature, params.top_p_bound, params.log_min_p
    assert found == (np.float32(1 / 0.7), np.float32(0.9), np.float32(math.log(0.1)))
    off = SamplerParams(temperature=0.0, top_p=1.0, min_p=0.0)
    found = off.inverse_temperature, off.top_p_bound, off.log_min_p
    assert found == (1, 2, -math.inf)
    assert all(isinstance(number, np.float32) for number in found)


def test_a_penalty_needs_tokens_and_a_factor() -> None:
    assert SamplerParams(repetition_penalty=1.1).has_penalty
    assert not SamplerParams(repetition_penalty=1.1, penalty_last_n=0).has_penalty
    assert not SamplerParams().has_penalty


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, math.nan, math.inf, "1", None, True]),
        ("top_k", [-1, 1.5, True, None]),
        ("top_p", [-0.1, 1.1, math.nan]),
        ("min_p", [-0.1, 1.1, math.nan]),
        ("repetition_penalty", [0.0, -1.0, math.inf]),
        ("penalty_last_n", [-2, 0.5]),
        ("seed", [-1, 2**64, 1.0]),
    ],
)
def test_a_bad_parameter_is_named(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=f"^{field} must be"):
            SamplerParams(**{field: value})
