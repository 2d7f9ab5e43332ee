"""The rotary position embedding of a model: what the metadata says about it.

Belongs here: the keys under `rope.`. Must not be here: other keys (`hyperparameters`).

Source: key names and defaults are those of llama.cpp's model loader.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from rpc_backend.errors import ModelFileError, UnsupportedModelError
from rpc_backend.graph import RopeMode
from rpc_backend.models.metadata_keys import MetadataKeys, describe

_BETA_FAST, _BETA_SLOW = 32.0, 1.0

WindowRope = Literal["same", "own", "plain"]
"""How layers with a window differ: at most in their base; in their base, and they do not scale; they do not scale."""


class RopeScaling(StrEnum):
    """How positions beyond the trained context are squeezed into it."""

    NONE = "none"
    LINEAR = "linear"
    YARN = "yarn"
    LONG = "longrope"


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotary position embedding, in the terms of the ROPE operation."""

    mode: RopeMode
    n_dims: int
    scaling: RopeScaling
    n_ctx_orig: int
    freq_base: float
    freq_scale: float
    ext_factor: float
    attn_factor: float
    beta_fast: float = _BETA_FAST
    beta_slow: float = _BETA_SLOW


def read_rope(keys: MetadataKeys, mode: RopeMode, head_k: int, *, takes_long: bool = False) -> Rope:
    """Read the keys under `rope.`; `takes_long` allows scaling by two sets of factors (longrope).

    Raises:
        ModelFileError: a bad value.
        UnsupportedModelError: another scaling.
    """
    n_dims = keys.count("rope.dimension_count", head_k)
    if n_dims > head_k or n_dims % 2:
        name = keys.name("rope.dimension_count")
        raise ModelFileError(f"metadata key {name} is {n_dims}; it must be even and at most the head size {head_k}")
    scaling = _scaling(keys, takes_long=takes_long)
    factor = 1.0 if scaling is RopeScaling.NONE else _scaling_factor(keys)
    own_factor = keys.number("rope.scaling.attn_factor", 1.0)
    is_yarn = scaling is RopeScaling.YARN
    return Rope(
        mode=mode,
        n_dims=n_dims,
        scaling=scaling,
        n_ctx_orig=keys.count("rope.scaling.original_context_length", keys.count("context_length")),
        freq_base=keys.number("rope.freq_base", 10000.0),
        freq_scale=1.0 / factor,
        ext_factor=1.0 if is_yarn else 0.0,
        attn_factor=own_factor * (_yarn_attn_factor(keys, factor) if is_yarn else 1.0),
    )


def windowed_rope(keys: MetadataKeys, rope: Rope, kind: WindowRope) -> Rope:
    """Return how layers with a window turn, where those without turn by `rope`."""
    if kind == "same":
        return replace(rope, freq_base=keys.number("rope.freq_base_swa", rope.freq_base))
    if kind == "own":
        return replace(rope, freq_base=keys.number("rope.freq_base_swa", 10000.0), freq_scale=1.0)
    return replace(rope, freq_scale=1.0, ext_factor=0.0, attn_factor=1.0)


def _scaling(keys: MetadataKeys, *, takes_long: bool) -> RopeScaling:
    value = keys.value("rope.scaling.type")
    if value is None:
        return RopeScaling.LINEAR
    known = [member.value for member in RopeScaling if takes_long or member is not RopeScaling.LONG]
    if value not in known:
        name = keys.name("rope.scaling.type")
        raise UnsupportedModelError(f"metadata key {name} is {describe(value)}; supported: {', '.join(known)}")
    return RopeScaling(value)


def _scaling_factor(keys: MetadataKeys) -> float:
    """The context's growth; the second key is an older name of the first, and 0 means none."""
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        if keys.value(key) is not None:
            return 1.0 if keys.value(key) == 0 else keys.number(key)
    return 1.0


def _yarn_attn_factor(keys: MetadataKeys, factor: float) -> float:
    """The operation multiplies by `1 + 0.1 ln(factor)` itself; divide it out where YaRN has none.

    Source: YaRN's attention temperature, which holds for factors above 1 only; llama.cpp's context setup.
    """
    built_in = 1.0 + 0.1 * math.log(factor)
    if built_in <= 0:
        raise ModelFileError(f"metadata key {keys.name('rope.scaling.factor')} is {factor}, too small for YaRN")
    return 1.0 if factor > 1 else 1.0 / built_in
