"""Cases of attention.

Belongs here: ROPE, SOFT_MAX, FLASH_ATTN_EXT. Must not be here: anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rpc_backend.graph import ElementType, RopeMode, Tensor, build
from rpc_backend.graph.element_types import BF16, F16, F32, I32, element_type
from rpc_backend.testing.backend_suite.case import Case, case_id, extents
from rpc_backend.testing.backend_suite.cases_products import tolerance
from rpc_backend.testing.backend_suite.leaves import Extents, Layout, Leaves

_YARN = {"n_ctx_orig": 2048, "freq_scale": 0.25, "ext_factor": 1.0, "attn_factor": 1.1}
_ROPE_SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "theta1e6": {"freq_base": 1e6},
    "scaled": {"freq_scale": 0.5, "attn_factor": 1.2},
    "yarn": _YARN,
    "yarn-half": {**_YARN, "ext_factor": 0.5, "beta_fast": 16.0, "beta_slow": 2.0},
}


def cases() -> Iterator[Case]:
    """Yield all of them."""
    yield from _rope_cases()
    yield from _soft_max_cases()
    yield from _flash_cases()


def _rope_cases() -> Iterator[Case]:
    for mode in RopeMode:
        part = 2 if mode is RopeMode.VISION else 1
        for setting in _ROPE_SETTINGS:
            yield _rope(mode, F32, (64, 3, 5, 1), 64 // part, setting)
        for kind in (F16, BF16):
            yield _rope(mode, kind, (64, 3, 5, 1), 64 // part, "plain")
        if mode is RopeMode.VISION:
            continue
        yield _rope(mode, F32, (64, 3, 5, 1), 64, "plain", factors=True)
        yield _rope(mode, F32, (64, 3, 5, 1), 64, "yarn", factors=True)
        for ne, n_dims in (((2, 1, 1, 1), 2), ((40, 9, 17, 1), 24), ((128, 2, 3, 2), 128), ((66, 3, 4, 1), 66)):
            yield _rope(mode, F32, ne, n_dims, "plain")
        for layout in ("padded", "sliced", "permuted"):
            yield _rope(mode, F32, (64, 4, 5, 1), 48, "plain", layout)
        yield _rope(mode, F32, (64, 4, 5, 1), 32, "plain", n_offset=16)


def _rope(
    mode: RopeMode, kind: ElementType, ne: Extents, n_dims: int, setting: str, layout: Layout = "packed", *,
    factors: bool = False, n_offset: int = 0,
) -> Case:  # fmt: skip
    params = dict(_ROPE_SETTINGS[setting], n_dims=n_dims, mode=mode, n_offset=n_offset)
    if mode.has_sections:
        params["sections"] = (1, 1, 0, 0) if n_dims == 2 else (n_dims // 4, n_dims // 8, n_dims // 8, 0)

    def make(leaves: Leaves) -> Tensor:
        positions = leaves.tensor(I32, (ne[2] * (4 if mode.has_sections else 1), 1, 1, 1), between=(0, 2000))
        scaling = leaves.tensor(F32, (n_dims // 2, 1, 1, 1), between=(1.0, 8.0)) if factors else None
        return build.rope(leaves.tensor(kind, ne, layout), positions, scaling, **params)

    offset = f"from{n_offset}" if n_offset else ""
    parts = (extents(*ne), layout, f"n_dims{n_dims}", setting, "factors" if factors else "", offset)
    return Case(case_id("ROPE", mode.name.lower(), kind, *parts), "ROPE", make)


def _soft_max_cases() -> Iterator[Case]:
    for n in (1, 3, 32, 33, 257):
        yield _soft_max((n, 5, 3, 2), None)
    for layout in ("padded", "permuted", "sliced"):
        yield _soft_max((35, 5, 3, 2), None, layout)
    for mask_kind in (F32, F16):
        for mask_ne in ((35, 5, 1, 1), (35, 5, 3, 1), (35, 5, 3, 2), (35, 8, 1, 2)):
            yield _soft_max((35, 5, 3, 2), (mask_kind, mask_ne))
        for heads in (4, 6, 9):
            yield _soft_max((35, 5, heads, 1), (mask_kind, (35, 5, 1, 1)), max_bias=8.0)
    yield _soft_max((257, 5, 3, 2), (F16, (257, 5, 1, 1)), "permuted")
    for mask_kind in (F32, F16):
        yield _soft_max((35, 5, 6, 2), (mask_kind, (35, 5, 1, 1)), sinks=True)
    yield _soft_max((257, 1, 4, 1), (F32, (257, 1, 1, 1)), max_bias=8.0, sinks=True)


def _soft_max(
    ne: Extents, mask: tuple[ElementType, Extents] | None, layout: Layout = "packed", max_bias: float = 0.0, *,
    sinks: bool = False,
) -> Case:  # fmt: skip
    def make(leaves: Leaves) -> Tensor:
        a = leaves.tensor(F32, ne, layout)
        bias = _mask(leaves, *mask, first_row_is_blind=False) if mask else None
        ends = leaves.tensor(F32, (ne[2], 1, 1, 1)) if sinks else None
        return build.soft_max(a, bias, scale=0.7, max_bias=max_bias, sinks=ends)

    masked = ("mask", mask[0], extents(*mask[1])) if mask else ()
    alibi = f"alibi{max_bias:g}" if max_bias else ""
    parts = (extents(*ne), layout, *masked, alibi, "sinks" if sinks else "")
    return Case(case_id("SOFT_MAX", "F32", *parts), "SOFT_MAX", make)


def _mask(leaves: Leaves, kind: ElementType, ne: Extents, *, first_row_is_blind: bool) -> Tensor:
    """Return a mask that hides a growing part of each row in the first round and none in the second."""
    n, rows, heads, streams = ne
    limit = np.arange(rows)[:, None] * max(1, n // max(1, rows))
    hidden = np.arange(n) > limit - (1 if first_row_is_blind else 0)
    bias = np.where(hidden, -np.inf, 0.0) - 0.1 * (np.arange(n) % 5)
    every = np.broadcast_to(bias, (streams, heads, rows, n)) - 0.25 * np.arange(heads)[:, None, None]
    return leaves.constant(kind, ne, every, np.where(np.isinf(every), -1.0, every))


@dataclass(frozen=True, slots=True)
class _Attention:
    """One arrangement of FLASH_ATTN_EXT."""

    head_k: int = 32
    head_v: int = 32
    tokens: int = 3
    kv: int = 33
    heads: int = 2
    kv_heads: int = 2
    streams: int = 1
    kv_streams: int = 1
    kv_kind: ElementType = F32
    mask: ElementType | None = None
    mask_heads: int = 1
    mask_streams: int = 1
    mask_rows: int = 0
    max_bias: float = 0.0
    softcap: float = 0.0
    permuted: bool = False
    blind: bool = False
    garbage: bool = False
    sinks: bool = False


_PLAIN = _Attention()
_GROUPED = _Attention(heads=9, kv_heads=3, mask=F16)
_SMALL_BLOCKS = tuple(element_type(name) for name in ("Q8_0", "Q4_0", "Q5_1"))

_ATTENTION: dict[str, _Attention] = {
    "plain": _PLAIN,
    "one-key": replace(_PLAIN, kv=1),
    "one-token": replace(_PLAIN, tokens=1, kv=257),
    "many-tokens": replace(_GROUPED, tokens=19, kv=70),
    "head64": replace(_GROUPED, head_k=64, head_v=64, kv=64),
    "head40": replace(_GROUPED, head_k=40, head_v=40),
    "head128": replace(_GROUPED, head_k=128, head_v=128, kv=32),
    "narrow-values": replace(_PLAIN, head_k=48, head_v=24),
    "grouped": _GROUPED,
    "mask-f32": replace(_GROUPED, mask=F32),
    "mask-per-head": replace(_GROUPED, mask_heads=9),
    "mask-more-rows": replace(_GROUPED, mask_rows=16),
    "streams": replace(_GROUPED, streams=2, kv_streams=2, mask_streams=2),
    "streams-share-keys": replace(_GROUPED, streams=2),
    "alibi": replace(_GROUPED, heads=6, max_bias=8.0),
    "softcap": replace(_GROUPED, softcap=5.0),
    "sinks": replace(_GROUPED, sinks=True),
    "sinks-one-token": replace(_GROUPED, sinks=True, tokens=1, kv=257),
    "sinks-softcap-alibi": replace(_GROUPED, heads=6, sinks=True, softcap=5.0, max_bias=8.0),
    "sinks-blind-token": replace(_GROUPED, sinks=True, blind=True),
    "blind-token": replace(_GROUPED, blind=True),
    "garbage-behind-mask": replace(_GROUPED, garbage=True),
    "cache-layout": replace(_GROUPED, permuted=True),
    "cache-layout-streams": replace(_GROUPED, permuted=True, streams=2, kv_streams=2, mask_streams=2),
    "cache-layout-one-token": replace(_GROUPED, permuted=True, tokens=1, kv=256, head_k=64, head_v=64),
}


def _flash_cases() -> Iterator[Case]:
    for name, shape in _ATTENTION.items():
        for kind in (F32, F16):
            yield _flash(name, replace(shape, kv_kind=kind))
    for kind in (BF16, *_SMALL_BLOCKS):
        for name in ("plain", "grouped", "one-token"):
            yield _flash(name, replace(_ATTENTION[name], kv_kind=kind))
    yield _flash("cache-layout", replace(_ATTENTION["cache-layout"], kv_kind=element_type("Q8_0")))


def _flash(name: str, shape: _Attention) -> Case:
    def make(leaves: Leaves) -> Tensor:
        layout: Layout = "permuted" if shape.permuted else "packed"
        q = leaves.tensor(F32, (shape.head_k, shape.tokens, shape.heads, shape.streams), layout)
        k, v = (_cached(leaves, shape, head, layout) for head in (shape.head_k, shape.head_v))
        mask = _attention_mask(leaves, shape)
        sinks = leaves.tensor(F32, (shape.heads, 1, 1, 1)) if shape.sinks else None
        return build.flash_attn_ext(q, k, v, mask, shape.head_k**-0.5, shape.max_bias, shape.softcap, sinks)

    return Case(
        case_id("FLASH_ATTN_EXT", shape.kv_kind, name), "FLASH_ATTN_EXT", make, tolerance=tolerance(shape.kv_kind)
    )


def _cached(leaves: Leaves, shape: _Attention, head: int, layout: Layout) -> Tensor:
    ne = (head, shape.kv, shape.kv_heads, shape.kv_streams)
    if not shape.garbage:
        return leaves.tensor(shape.kv_kind, ne, layout)
    first, second = (np.random.default_rng(seed).normal(size=ne[::-1]) for seed in (head, head + 1))
    first[:, :, -2:] = np.nan
    return leaves.constant(shape.kv_kind, ne, first, second)


def _attention_mask(leaves: Leaves, shape: _Attention) -> Tensor | None:
    if shape.mask is None:
        return None
    ne = (shape.kv, shape.mask_rows or shape.tokens, shape.mask_heads, shape.mask_streams)
    return _mask(leaves, shape.mask, ne, first_row_is_blind=shape.blind)
