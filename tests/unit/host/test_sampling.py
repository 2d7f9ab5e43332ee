"""Sampling: what each step keeps, what is drawn, what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rpc_backend.errors import ComputeError, ConfigError
from rpc_backend.host.sampling import Sampler, SamplerParams, check_best, log_probabilities, uniform

OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}


def logits_of(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities, dtype=np.float32))


def drawn(logits: np.ndarray, n: int = 400, history: list[int] | None = None, **changes: Any) -> set[int]:
    """All tokens that a few hundred draws give."""
    sampler = Sampler(SamplerParams(**(OFF | changes)))
    return {sampler.sample(logits, history or []) for _ in range(n)}


class TestSteps:
    SPREAD = logits_of(0.1, 0.4, 0.05, 0.25, 0.2)

    def test_top_k_keeps_the_most_likely(self) -> None:
        assert drawn(self.SPREAD) == {0, 1, 2, 3, 4}
        assert drawn(self.SPREAD, top_k=2) == {1, 3}
        assert drawn(self.SPREAD, top_k=1) == {1}
        assert drawn(self.SPREAD, top_k=99) == {0, 1, 2, 3, 4}

    def test_top_k_breaks_ties_by_lower_id(self) -> None:
        assert drawn(logits_of(0.1, 0.2, 0.2, 0.3, 0.2), top_k=3) == {1, 2, 3}

    def test_top_p_keeps_up_to_and_over_its_share(self) -> None:
        assert drawn(self.SPREAD, top_p=0.6) == {1, 3}  # 0.4 is not enough, 0.65 is
        assert drawn(self.SPREAD, top_p=0.3) == {1}
        assert drawn(self.SPREAD, top_p=0.0) == {1}

    def test_top_p_measures_what_top_k_left(self) -> None:
        assert drawn(self.SPREAD, top_k=2, top_p=0.61) == {1}  # 0.4 of 0.65

    def test_min_p_measures_against_the_best(self) -> None:
        assert drawn(self.SPREAD, min_p=0.45) == {1, 3, 4}
        assert drawn(self.SPREAD, min_p=1.0) == {1}

    def test_temperature_comes_after_the_filters(self) -> None:
        assert drawn(self.SPREAD, temperature=100.0, top_p=0.6) == {1, 3}
        assert drawn(self.SPREAD, temperature=0.01) == {1}

    def test_the_penalty_weakens_recent_tokens_of_either_sign(self) -> None:
        logits = np.array([2.0, 1.5, -1.0, -1.5], dtype=np.float32)
        greedy = OFF | {"temperature": 0, "repetition_penalty": 2.0}
        assert drawn(logits, **greedy) == {0}
        assert drawn(logits, history=[0], **greedy) == {1}
        assert drawn(logits[2:], history=[0], **greedy) == {1}
        assert drawn(logits, history=[0, 0, 0], **greedy) == {1}  # once, however often it came

    @pytest.mark.parametrize(("last_n", "token"), [(0, 0), (2, 0), (3, 1), (-1, 1)])
    def test_the_penalty_looks_back_so_far(self, last_n: int, token: int) -> None:
        logits = np.array([2.0, 1.5, 0.1], dtype=np.float32)
        greedy = OFF | {"temperature": 0, "repetition_penalty": 2.0, "penalty_last_n": last_n}
        assert drawn(logits, history=[0, 2, 2], **greedy) == {token}

    def test_nothing_is_changed_in_the_logits(self) -> None:
        logits = self.SPREAD.copy()
        Sampler(SamplerParams(repetition_penalty=1.5, seed=1)).sample(logits, [0, 1])
        assert np.array_equal(logits, self.SPREAD)


class TestDraws:
    def test_greedy_takes_the_lowest_id_of_equal_best(self) -> None:
        sampler = Sampler(SamplerParams(temperature=0))
        assert sampler.sample(np.array([1, 3, 3, 0], dtype=np.float32)) == 1
        assert SamplerParams(temperature=1e-7).is_greedy
        assert not SamplerParams().is_greedy

    def test_a_draw_is_the_first_place_over_the_uniform_number(self) -> None:
        logits = logits_of(0.2, 0.5, 0.3)  # in order of probability: 1, 2, 0
        sampler = Sampler(SamplerParams(**OFF))
        for index in range(200):
            number = uniform(1, index)
            assert sampler.sample(logits) == (1 if number < 0.5 else 2 if number < 0.8 else 0)

    def test_shares_follow_the_probabilities(self) -> None:
        sampler = Sampler(SamplerParams(**OFF | {"seed": 7}))
        logits = logits_of(0.2, 0.5, 0.3)
        counts = np.bincount([sampler.sample(logits) for _ in range(4000)], minlength=3)
        assert np.abs(counts / 4000 - [0.2, 0.5, 0.3]).max() < 0.03

    def test_equal_seeds_give_equal_tokens_and_others_do_not(self) -> None:
        logits = np.linspace(0, 1, 50, dtype=np.float32)

        def tokens(seed: int | None) -> list[int]:
            sampler = Sampler(SamplerParams(**OFF | {"seed": seed}))
            return [sampler.sample(logits) for _ in range(20)]

        assert tokens(3) == tokens(3)
        assert tokens(3) != tokens(4)
        assert tokens(None) != tokens(None)

    def test_a_sampler_says_its_seed(self) -> None:
        first = Sampler(SamplerParams(**OFF | {"seed": None}))
        again = Sampler(SamplerParams(**OFF | {"seed": first.seed}))
        logits = np.linspace(0, 1, 50, dtype=np.float32)
        assert [first.sample(logits) for _ in range(9)] == [again.sample(logits) for _ in range(9)]
        assert first.n_drawn == 9

    def test_a_number_can_be_taken_for_a_draw_that_is_made_elsewhere(self) -> None:
        sampler, other = (Sampler(SamplerParams(**OFF | {"seed": 8})) for _ in range(2))
        logits = np.linspace(0, 1, 50, dtype=np.float32)
        numbers = [sampler.next_uniform() for _ in range(130)]
        assert numbers == [uniform(8, index) for index in range(130)]
        assert sampler.n_drawn == 130
        for _ in range(130):
            other.sample(logits)
        assert sampler.sample(logits) == other.sample(logits)


FINITE = st.floats(-50, 50, width=32)
ROWS = hnp.arrays(np.float32, st.integers(1, 40), elements=FINITE)


class TestInvariants:
    @given(
        logits=ROWS,
        temperature=st.floats(0.01, 10),
        top_k=st.integers(0, 50),
        top_p=st.floats(0, 1),
        min_p=st.floats(0, 1),
        penalty=st.floats(0.5, 2),
        seed=st.integers(0, 2**64 - 1),
    )
    @settings(max_examples=150, deadline=None)
    def test_a_draw_lies_within_every_filter(
        self,
        logits: np.ndarray,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        penalty: float,
        seed: int,
    ) -> None:
        history = list(range(0, len(logits), 3))
        params = SamplerParams(temperature, top_k, top_p, min_p, penalty, seed=seed)
        token = Sampler(params).sample(logits, history)
        weakened = logits.astype(np.float64)
        weakened[history] *= np.where(weakened[history] > 0, 1 / penalty, penalty)
        rank = int(np.count_nonzero(weakened > weakened[token] + 1e-4))
        assert rank < (top_k or len(logits))
        assert weakened[token] >= weakened.max() + math.log(max(min_p, 1e-300)) - 1e-3
        kept = np.sort(weakened)[::-1][: top_k or None]
        before = np.exp(kept[kept > weakened[token] + 1e-4] - kept[0]).sum() / np.exp(kept - kept[0]).sum()
        assert before <= top_p + 1e-4

    @given(logits=ROWS, masked=st.sets(st.integers(0, 39)), seed=st.integers(0, 2**32))
    @settings(max_examples=100, deadline=None)
    def test_a_masked_token_is_never_drawn(self, logits: np.ndarray, masked: set[int], seed: int) -> None:
        keep = [token for token in range(len(logits)) if token not in masked] or [0]
        only = np.full_like(logits, -np.inf)
        only[keep] = logits[keep]
        sampler = Sampler(SamplerParams(**OFF | {"seed": seed}))
        assert all(sampler.sample(only) in keep for _ in range(10))

    @given(
        hnp.arrays(
            np.float32, st.tuples(st.integers(1, 3), st.integers(1, 20)), elements=st.floats(-1e4, 1e4, width=32)
        )
    )
    @settings(max_examples=50, deadline=None)
    def test_log_probabilities_sum_to_one_and_keep_distances(self, logits: np.ndarray) -> None:
        found = log_probabilities(logits)
        assert (found.dtype, found.shape) == (np.float32, logits.shape)
        assert np.allclose(np.exp(found.astype(np.float64)).sum(axis=-1), 1, atol=1e-3)
        assert np.allclose(found - found[:, :1], logits - logits[:, :1], atol=1e-2)


@pytest.mark.parametrize("n_vocab", [4096, 4097, 49152])
@pytest.mark.parametrize("kind", ["normal", "ties", "mostly impossible", "one pile"])
def test_top_k_of_a_large_vocabulary_is_that_of_a_whole_sort(n_vocab: int, kind: str) -> None:
    numbers = np.random.default_rng(n_vocab)
    logits = numbers.standard_normal(n_vocab).astype(np.float32)
    if kind == "ties":
        logits = np.round(logits)
    elif kind == "mostly impossible":
        logits[numbers.permutation(n_vocab)[9:]] = -np.inf
    elif kind == "one pile":
        logits[7::512] += 20
    for top_k in (1, 5, 40, 128):
        best = np.argsort(-logits, kind="stable")[:top_k]
        only_best = np.full_like(logits, -np.inf)
        only_best[best] = logits[best]
        fast = Sampler(SamplerParams(top_k=top_k, top_p=1.0, min_p=0.0, temperature=2.0, seed=3))
        whole = Sampler(SamplerParams(top_k=0, top_p=1.0, min_p=0.0, temperature=2.0, seed=3))
        for _ in range(8):
            assert fast.sample(logits) == whole.sample(only_best)


def test_log_probabilities_of_one_row() -> None:
    assert np.allclose(log_probabilities(logits_of(0.25, 0.75)), np.log([0.25, 0.75]), atol=1e-6)


def test_extreme_logits_are_drawn_from_in_silence() -> None:
    logits = np.array([3e38, -3e38, -np.inf], dtype=np.float32)
    assert drawn(logits, n=5, temperature=1e-5, repetition_penalty=2.0, history=[1]) == {0}


class TestRefusals:
    def test_bad_logits_are_a_compute_error(self) -> None:
        sampler = Sampler(SamplerParams())
        with pytest.raises(ComputeError, match="2 of 4 logits are NaN, the first at token 1"):
            sampler.sample(np.array([0, np.nan, 1, np.nan], dtype=np.float32))
        with pytest.raises(ComputeError, match="the best of 2 logits is inf"):
            sampler.sample(np.array([0, np.inf], dtype=np.float32))
        with pytest.raises(ComputeError, match="the best of 2 logits is -inf"):
            sampler.sample(np.array([-np.inf, -np.inf], dtype=np.float32))
        with pytest.raises(ComputeError, match=r"not of shape \(1, 3\)"):
            sampler.sample(np.zeros((1, 3), dtype=np.float32))
        with pytest.raises(ComputeError, match=r"not of shape \(0,\)"):
            sampler.sample(np.zeros(0, dtype=np.float32))

    @pytest.mark.parametrize("best", [math.nan, math.inf, -math.inf])
    def test_what_a_device_could_not_choose_from_is_a_compute_error(self, best: float) -> None:
        check_best(np.float32(-3.5))
        with pytest.raises(ComputeError, match=f"the best logit is {best}"):
            check_best(best)

    def test_a_history_outside_the_vocabulary_is_an_error(self) -> None:
        sampler = Sampler(SamplerParams(repetition_penalty=1.1))
        for token in (3, -1):
            with pytest.raises(ConfigError, match="outside the vocabulary of 3 tokens"):
                sampler.sample(np.zeros(3, dtype=np.float32), [0, token])
