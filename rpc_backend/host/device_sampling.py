"""Tokens drawn on the device that has the logits: when that can be, and with which numbers.

Belongs here: the step from samplers to the sampling input of a step. Must not be here: the graph (`models`), or
the sampler of the host (`sampling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rpc_backend.host.sampling import FloatArray, Sampler, SamplerParams
from rpc_backend.models import SamplingShape, can_sample_on_backend, sampling_values


@dataclass(frozen=True, slots=True)
class DeviceSampling:
    """The shape of a step's sampler chain, and the values of its input (None if all rows are greedy)."""

    shape: SamplingShape
    values: FloatArray | None


def sampling_of(samplers: Sequence[Sampler | None], n_vocab: int, *, log_probs: bool = False) -> DeviceSampling | None:
    """Return what a step needs to draw one token for each sampler (None = an idle row), and count the draws.

    With `log_probs` the step gives the log-probabilities of the tokens too. None means that one of them must draw on
    the host, and then all do; no draw is counted.
    """
    params = tuple(sampler.params if sampler is not None else None for sampler in samplers)
    shape = _shape_of(params, n_vocab, log_probs)
    if shape is None:
        return None
    numbers = [0.0 if sampler is None else float(sampler.next_uniform()) for sampler in samplers]
    return DeviceSampling(shape, None if shape.greedy else sampling_values(params, numbers))


@lru_cache(maxsize=256)
def _shape_of(params: tuple[SamplerParams | None, ...], n_vocab: int, log_probs: bool) -> SamplingShape | None:
    """The shape for these rows, the same from step to step; None if one of them cannot be sampled on a device."""
    used = [one for one in params if one is not None]
    if not all(can_sample_on_backend(one, n_vocab) for one in used):
        return None
    return SamplingShape.covering(used, len(params), n_vocab, log_probs=log_probs)
