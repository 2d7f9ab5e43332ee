"""Cases of several operations together: a layer of a model, a weight with two uses.

Belongs here: what single operations cannot show, such as fusing, weights laid out for one use and read by
another, and a cache that is written and read in one graph. Must not be here: single operations.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rpc_backend.graph import ElementType, Glu, RopeMode, Tensor, build
from rpc_backend.graph.element_types import F16, F32, I32, I64, element_type
from rpc_backend.testing.backend_suite.case import Case, case_id
from rpc_backend.testing.backend_suite.cases_products import tolerance
from rpc_backend.testing.backend_suite.leaves import Leaves

_KINDS = (F32, F16, *(element_type(name) for name in ("Q8_0", "Q4_0", "Q4_K", "Q6_K")))
_HEAD, _HEADS, _KV_HEADS, _N_KV = 32, 8, 2, 64


def cases() -> Iterator[Case]:
    """Yield all of them."""
    for kind in _KINDS:
        for tokens in (1, 7):
            yield _layer(kind, tokens)
        yield _tied(kind)
        yield _part_of_weight(kind)
        yield _written_again(kind)


def _layer(kind: ElementType, tokens: int) -> Case:
    """One layer of the architecture llama over a cache in F16."""
    bound = 4 * tolerance(kind) if kind.is_quantized else 1e-6
    name = case_id("ADD", "a layer", kind, f"tokens{tokens}")
    return Case(name, "ADD", lambda leaves: _build_layer(leaves, kind, tokens), tolerance=bound)


def _build_layer(leaves: Leaves, kind: ElementType, tokens: int) -> Tensor:
    width, inner = _HEAD * _HEADS, 256
    x = leaves.tensor(F32, (width, tokens, 1, 1))
    attended = build.add(x, _attention(leaves, kind, _normed(leaves, x), tokens))
    normed = _normed(leaves, attended)
    gate, up = (_product(leaves, kind, inner, normed) for _ in range(2))
    return build.add(attended, _product(leaves, kind, width, build.glu(Glu.SWIGLU, gate, up)))


def _normed(leaves: Leaves, x: Tensor) -> Tensor:
    return build.mul(build.rms_norm(x, 1e-5), leaves.weight(F32, (x.ne[0], 1, 1, 1)))


def _product(leaves: Leaves, kind: ElementType, n_rows: int, x: Tensor) -> Tensor:
    """A product brought back to the size of x, since random blocks differ in size from type to type."""
    return build.rms_norm(build.mul_mat(leaves.weight(kind, (x.ne[0], n_rows, 1, 1)), x), 1e-5)


def _attention(leaves: Leaves, kind: ElementType, x: Tensor, tokens: int) -> Tensor:
    positions = leaves.constant(I32, (tokens, 1, 1, 1), np.arange(tokens) + 7, np.arange(tokens) + 30)
    q, k, v = (
        build.reshape(_product(leaves, kind, _HEAD * heads, x), (_HEAD, heads, tokens))
        for heads in (_HEADS, _KV_HEADS, _KV_HEADS)
    )
    q, k = (build.rope(part, positions, n_dims=_HEAD, mode=RopeMode.NORMAL) for part in (q, k))
    rows = leaves.constant(I64, (tokens, 1, 1, 1), np.arange(tokens) + 7, np.arange(tokens) + 30)
    keys, values = (_cached(leaves, part, rows, tokens) for part in (k, v))
    mask = leaves.constant(F16, (_N_KV, tokens, 1, 1), *(_causal(first, tokens) for first in (7, 30)))
    attended = build.flash_attn_ext(build.permute(q, 0, 2, 1, 3), keys, values, mask, _HEAD**-0.5)
    return _product(leaves, kind, _HEAD * _HEADS, build.reshape(attended, (_HEAD * _HEADS, tokens)))


def _cached(leaves: Leaves, part: Tensor, rows: Tensor, tokens: int) -> Tensor:
    """Write the tokens' rows to a cache and return its window [head, kv, kv heads]."""
    width = _HEAD * _KV_HEADS
    cache = leaves.tensor(F16, (width, _N_KV, 1, 1))
    written = build.set_rows(cache, build.reshape(part, (width, tokens)), rows)
    size = written.nb[0]
    window = build.view(written, (_HEAD, _KV_HEADS, _N_KV), (size, size * _HEAD, written.nb[1], written.nb[2]))
    return build.permute(window, 0, 2, 1, 3)


def _causal(first: int, tokens: int) -> np.ndarray:
    return np.where(np.arange(_N_KV) <= first + np.arange(tokens)[:, None], 0.0, -np.inf)


def _tied(kind: ElementType) -> Case:
    """A weight is the embedding and the output: its rows are picked after a product has used it, and before."""

    def make(leaves: Leaves) -> Tensor:
        weight = leaves.weight(kind, (512, 50, 1, 1))
        logits = build.mul_mat(weight, leaves.tensor(F32, (512, 4, 1, 1)))
        picked = build.get_rows(weight, leaves.indices(I32, (6, 1, 1, 1), 50))
        return build.concat(logits, build.mul_mat(weight, picked), 1)

    return Case(case_id("CONCAT", "a tied weight", kind), "CONCAT", make, tolerance=tolerance(kind))


def _part_of_weight(kind: ElementType) -> Case:
    """A weight is used whole, and a window of its rows is used as a weight of its own."""

    def make(leaves: Leaves) -> Tensor:
        weight = leaves.weight(kind, (512, 50, 1, 1))
        x = leaves.tensor(F32, (512, 3, 1, 1))
        part = build.view(weight, (512, 21), offset_bytes=9 * weight.nb[1])
        return build.concat(build.mul_mat(part, x), build.mul_mat(weight, x), 0)

    return Case(case_id("CONCAT", "part of a weight", kind), "CONCAT", make, tolerance=tolerance(kind))


def _written_again(kind: ElementType) -> Case:
    """A weight gets another content after it was used."""

    def make(leaves: Leaves) -> Tensor:
        return build.mul_mat(leaves.weight(kind, (512, 33, 1, 1), again=True), leaves.tensor(F32, (512, 3, 1, 1)))

    return Case(case_id("MUL_MAT", "a weight written again", kind), "MUL_MAT", make, tolerance=tolerance(kind))
