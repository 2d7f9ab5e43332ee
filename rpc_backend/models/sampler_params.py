"""What a sampler is asked to do, and the numbers that decide a draw.

Belongs here: parameters, the float32 numbers that sampling compares with, the uniform numbers: all that the host's
sampler and the one in the step's graph must have in common. Must not be here: either of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rpc_backend.errors import ConfigError

N_SEEDS = 1 << 64
"""Seeds are whole numbers below this."""
_GREEDY_BELOW = 1e-6
_WORDS_PER_COUNT = 4


@dataclass(frozen=True, slots=True)
class SamplerParams:
    """How to choose tokens.

    `temperature`: 0 is greedy, always the most likely token; so is anything below 1e-6.
    `top_k`: keep this many most likely tokens; 0 is off.
    `top_p`: keep the most likely tokens up to this share of the probability; 1 is off.
    `min_p`: keep tokens at least this share as likely as the best one; 0 is off.
    `repetition_penalty`: weaken the tokens among the last `penalty_last_n` (-1: all, 0: none); 1 is off.
    `seed`: of the uniform numbers; None takes a new one for each Sampler.

    Raises: ConfigError naming the field that has a bad value.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    penalty_last_n: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        self._check_number("temperature", 0.0, 1000.0)
        self._check_whole("top_k", 0, 1 << 31)
        self._check_number("top_p", 0.0, 1.0)
        self._check_number("min_p", 0.0, 1.0)
        self._check_number("repetition_penalty", 0.01, 1000.0)
        self._check_whole("penalty_last_n", -1, 1 << 31)
        if self.seed is not None:
            self._check_whole("seed", 0, N_SEEDS - 1)

    @property
    def is_greedy(self) -> bool:
        """Whether no number is drawn at all."""
        return self.temperature < _GREEDY_BELOW

    @property
    def inverse_temperature(self) -> np.float32:
        """What distances from the best logit are multiplied by; 1 if greedy, where it does not matter."""
        return np.float32(1.0 if self.is_greedy else 1.0 / self.temperature)

    @property
    def top_p_bound(self) -> np.float32:
        """The share of the probability that is enough; 2, which never is, if top-p is off."""
        return np.float32(self.top_p if self.top_p < 1.0 else 2.0)

    @property
    def log_min_p(self) -> np.float32:
        """The least distance from the best logit that is kept; -inf if min-p is off."""
        return np.float32(math.log(self.min_p) if self.min_p > 0.0 else -math.inf)

    @property
    def has_penalty(self) -> bool:
        """Whether the tokens so far matter."""
        return self.repetition_penalty != 1.0 and self.penalty_last_n != 0

    def _check_whole(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(f"{name} must be a whole number from {low} to {high}, not {value!r}")

    def _check_number(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:  # a NaN fails the comparison
            raise ConfigError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")


def uniform(seed: int, index: int) -> np.float32:
    """Return the uniform number in [0, 1) of draw `index`, the same on every machine.

    It is a function of its arguments alone: the top 24 bits of the first word that Philox-4x64 with key
    `seed` gives for the counter `index`. 24 bits are all that a float32 in [0, 1) can hold evenly.
    """
    return uniforms(seed, index, 1)[0]


def uniforms(seed: int, first: int, count: int) -> npt.NDArray[np.float32]:
    """Return the uniform numbers of `count` draws from draw `first` on.

    Shapes: result float32 [count].
    """
    words = np.random.Philox(key=seed, counter=first).random_raw(_WORDS_PER_COUNT * count)
    return (words[::_WORDS_PER_COUNT] >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
