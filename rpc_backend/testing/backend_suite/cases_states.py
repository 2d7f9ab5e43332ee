"""Cases of operations that carry a state from token to token.

Belongs here: SSM_CONV, SSM_SCAN, GATED_DELTA_NET, GATED_LINEAR_ATTN, RWKV_WKV6, RWKV_WKV7, SOLVE_TRI. Must not be
here: anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rpc_backend.graph import Tensor, build
from rpc_backend.graph.element_types import F32, I32
from rpc_backend.testing.backend_suite.case import Case, case_id, extents
from rpc_backend.testing.backend_suite.leaves import Extents, Leaves


def cases() -> Iterator[Case]:
    """Yield all of them."""
    for width, tokens, channels, streams in ((4, 1, 48, 1), (4, 7, 33, 1), (4, 1, 32, 3), (3, 5, 8, 2), (1, 4, 8, 1)):
        yield _conv(width, tokens, channels, streams)
    for name, shape in _DELTA.items():
        yield _delta(name, shape)
    for tokens, streams in ((1, 1), (6, 1), (6, 3)):
        yield _linear(tokens, streams)
        for op in ("RWKV_WKV6", "RWKV_WKV7"):
            for size in (16, 20, 64):
                yield _rwkv(op, size, tokens, streams)
    for name, scan in _SCAN.items():
        yield _scan_case(name, scan)
    yield replace(_scan_case("id-outside", _PLAIN_SCAN, outside=True), fails_first=True)
    for n, columns in ((1, 1), (16, 5), (64, 64)):
        yield _solve(n, columns)


def _conv(width: int, tokens: int, channels: int, streams: int) -> Case:
    def make(leaves: Leaves) -> Tensor:
        x = leaves.tensor(F32, (width - 1 + tokens, channels, streams, 1))
        return build.ssm_conv(x, leaves.weight(F32, (width, channels, 1, 1)))

    name = case_id("SSM_CONV", "F32", extents(width - 1 + tokens, channels, streams), f"width{width}")
    return Case(name, "SSM_CONV", make)


@dataclass(frozen=True, slots=True)
class _Delta:
    """One arrangement of GATED_DELTA_NET; with `strided` q, k and v are windows of one tensor."""

    size: int = 16
    heads: int = 2
    heads_k: int = 2
    tokens: int = 3
    streams: int = 1
    gate_per_row: bool = False
    snapshots: int = 1
    strided: bool = False


_PLAIN = _Delta()
_DELTA: dict[str, _Delta] = {
    "plain": _PLAIN,
    "one-token": replace(_PLAIN, tokens=1),
    "size64": replace(_PLAIN, size=64, tokens=5),
    "size128": replace(_PLAIN, size=128, tokens=2),
    "heads-repeat": replace(_PLAIN, heads=6),
    "streams": replace(_PLAIN, streams=3),
    "gate-per-row": replace(_PLAIN, gate_per_row=True),
    "snapshots": replace(_PLAIN, tokens=5, snapshots=3),
    "windows": replace(_PLAIN, heads=4, streams=2, strided=True),
    "windows-one-token": replace(_PLAIN, heads=4, size=32, tokens=1, strided=True),
}


def _delta(name: str, shape: _Delta) -> Case:
    size, heads, tokens, streams = shape.size, shape.heads, shape.tokens, shape.streams

    def make(leaves: Leaves) -> Tensor:
        q, k, v = _windows(leaves, shape) if shape.strided else _three(leaves, shape)
        gate_ne = (size if shape.gate_per_row else 1, heads, tokens, streams)
        gate = leaves.tensor(F32, gate_ne, between=(-2.0, 0.0))
        beta = leaves.tensor(F32, (1, heads, tokens, streams), between=(0.0, 1.0))
        state = leaves.tensor(F32, (size, size, heads, streams))
        return build.gated_delta_net(q, k, v, gate, beta, state, shape.snapshots)

    return Case(case_id("GATED_DELTA_NET", name), "GATED_DELTA_NET", make)


def _three(leaves: Leaves, shape: _Delta) -> tuple[Tensor, Tensor, Tensor]:
    bound = shape.size**-0.5
    ne_k = (shape.size, shape.heads_k, shape.tokens, shape.streams)
    q, k = (leaves.tensor(F32, ne_k, between=(-bound, bound)) for _ in range(2))
    return q, k, leaves.tensor(F32, (shape.size, shape.heads, shape.tokens, shape.streams))


def _windows(leaves: Leaves, shape: _Delta) -> tuple[Tensor, Tensor, Tensor]:
    size, bound = shape.size, shape.size**-0.5
    width = size * (2 * shape.heads_k + shape.heads)
    mixed = leaves.tensor(F32, (width, shape.tokens, shape.streams, 1), between=(-bound, bound))
    counts = (shape.heads_k, shape.heads_k, shape.heads)
    starts = (0, shape.heads_k, 2 * shape.heads_k)
    q, k, v = (
        build.view(
            mixed, (size, count, shape.tokens, shape.streams), (4, 4 * size, mixed.nb[1], mixed.nb[2]), 4 * size * start
        )
        for count, start in zip(counts, starts, strict=True)
    )
    return q, k, v


def _linear(tokens: int, streams: int) -> Case:
    size, heads = 16, 3

    def make(leaves: Leaves) -> Tensor:
        ne: Extents = (size, heads, tokens, 1)
        k, v, q = (leaves.tensor(F32, ne) for _ in range(3))
        gate = leaves.tensor(F32, ne, between=(0.2, 1.0))
        state = leaves.tensor(F32, (size * size * heads, streams, 1, 1))
        return build.gated_linear_attn(k, v, q, gate, state, size**-0.5)

    return Case(case_id("GATED_LINEAR_ATTN", f"tokens{tokens}", f"streams{streams}"), "GATED_LINEAR_ATTN", make)


@dataclass(frozen=True, slots=True)
class _Scan:
    """One arrangement of SSM_SCAN; with `strided` x, b and c are windows of one tensor."""

    size: int = 16
    dim: int = 8
    heads: int = 4
    groups: int = 2
    tokens: int = 3
    streams: int = 2
    decays: int = 1
    snapshots: int = 1
    strided: bool = False


_PLAIN_SCAN = _Scan()
_SCAN: dict[str, _Scan] = {
    "plain": _PLAIN_SCAN,
    "one-token": replace(_PLAIN_SCAN, tokens=1, streams=1),
    "size128": replace(_PLAIN_SCAN, size=128, dim=64, groups=1, streams=1),
    "size20": replace(_PLAIN_SCAN, size=20),
    "decay-per-element": replace(_PLAIN_SCAN, dim=1, heads=48, groups=1, decays=16),
    "decay-per-element,groups": replace(_PLAIN_SCAN, decays=16),
    "snapshots": replace(_PLAIN_SCAN, tokens=5, snapshots=3),
    "windows": replace(_PLAIN_SCAN, strided=True),
}


def _scan_case(name: str, scan: _Scan, *, outside: bool = False) -> Case:
    heads, tokens, streams = scan.heads, scan.tokens, scan.streams

    def make(leaves: Leaves) -> Tensor:
        states = leaves.tensor(F32, (scan.size, scan.dim, heads, streams + 2))
        counts = ((scan.dim, heads), (scan.size, scan.groups), (scan.size, scan.groups))
        x, b, c = _scan_inputs(leaves, scan, counts)
        step = leaves.tensor(F32, (heads, tokens, streams, 1), between=(-3.0, 1.0))
        decay = leaves.tensor(F32, (scan.decays, heads, 1, 1), between=(-2.0, -0.1))
        first = np.array([-1] * streams) if outside else np.arange(streams)[::-1] + 1
        ids = leaves.constant(I32, (streams, 1, 1, 1), first, np.arange(streams) + 2)
        return build.ssm_scan(states, x, step, decay, b, c, ids, scan.snapshots)

    return Case(case_id("SSM_SCAN", name), "SSM_SCAN", make)


def _scan_inputs(leaves: Leaves, scan: _Scan, counts: tuple[tuple[int, int], ...]) -> list[Tensor]:
    after = (scan.tokens, scan.streams)
    if not scan.strided:
        return [leaves.tensor(F32, (*count, *after)) for count in counts]
    widths = [size * count for size, count in counts]
    mixed = leaves.tensor(F32, (sum(widths), *after, 1))
    return [
        build.view(mixed, (*count, *after), (4, 4 * count[0], mixed.nb[1], mixed.nb[2]), 4 * sum(widths[:number]))
        for number, count in enumerate(counts)
    ]


def _rwkv(op: str, size: int, tokens: int, streams: int) -> Case:
    heads = 3
    bound = size**-0.5

    def make(leaves: Leaves) -> Tensor:
        ne: Extents = (size, heads, tokens, 1)
        k, v, r, a, b = (leaves.tensor(F32, ne, between=(-bound, bound)) for _ in range(5))
        decay = leaves.tensor(F32, ne, between=(0.2, 1.0))
        state = leaves.tensor(F32, (size * size * heads, streams, 1, 1))
        if op == "RWKV_WKV6":
            return build.rwkv_wkv6(k, v, r, leaves.weight(F32, (size, heads, 1, 1)), decay, state)
        return build.rwkv_wkv7(r, decay, k, v, a, b, state)

    return Case(case_id(op, f"size{size}", f"tokens{tokens}", f"streams{streams}"), op, make)


def _solve(n: int, columns: int) -> Case:
    random = np.random.default_rng(n)
    matrices = [np.tril(random.normal(size=(2, n, n)) * n**-0.5, -1) + np.eye(n) for _ in range(2)]

    def make(leaves: Leaves) -> Tensor:
        a = leaves.constant(F32, (n, n, 2, 1), matrices[0], matrices[1])
        return build.solve_tri(a, leaves.tensor(F32, (columns, n, 2, 1)))

    return Case(case_id("SOLVE_TRI", extents(n, n, 2), f"columns{columns}"), "SOLVE_TRI", make)
