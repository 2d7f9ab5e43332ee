"""Tokens drawn on the device that has the logits: when that can be, and with which numbers.

Belongs here: the step from samplers to the sampling input of a step. Must not be here: the graph (`models`), or
the sampler of the host (`sampling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rpc_backend.host.sampling import FloatArray, Sampler
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
    params = [sampler.params if sampler is not None else None for sampler in samplers]
    used = [one for one in params if one is not None]
    if not all(can_sample_on_backend(one, n_vocab) for one in used):
        return None
    shape = SamplingShape.covering(used, len(samplers), n_vocab, log_probs=log_probs)
    numbers = [0.0 if sampler is None else float(sampler.next_uniform()) for sampler in samplers]
    return DeviceSampling(shape, None if shape.greedy else sampling_values(params, numbers))
