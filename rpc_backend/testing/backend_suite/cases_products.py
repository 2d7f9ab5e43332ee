"""Cases of MUL_MAT.

Belongs here: matrix products. Must not be here: anything else.
"""

from __future__ import annotations

from collections.abc import Iterator

from rpc_backend.graph import ELEMENT_TYPES, ElementType, Tensor, build
from rpc_backend.graph.element_types import BF16, F16, F32, FLOATS, element_type
from rpc_backend.testing.backend_suite.case import Case, case_id, extents
from rpc_backend.testing.backend_suite.leaves import Layout, Leaves

_PLAIN = ((1, 5, 3), (32, 16, 1), (33, 17, 3), (96, 48, 16), (257, 1, 17), (288, 20, 17), (544, 16, 1))
_BLOCKS_OF_32 = ((32, 16, 1), (64, 33, 4), (96, 17, 3), (288, 48, 17), (544, 20, 16), (288, 1, 48), (576, 130, 33))
_BLOCKS_OF_256 = ((256, 16, 1), (256, 33, 4), (512, 17, 3), (768, 48, 17), (1280, 20, 16), (512, 1, 48), (512, 130, 33))
_LAYOUTS: tuple[tuple[Layout, Layout, ElementType], ...] = (
    ("padded", "packed", F32), ("sliced", "packed", F32), ("permuted", "permuted", F32), ("packed", "padded", F32),
    ("packed", "transposed", F32), ("packed", "packed", F16), ("packed", "padded", BF16),
)  # fmt: skip
_BATCHES = ((1, 1, 3, 2), (2, 1, 1, 1), (2, 3, 1, 1), (2, 3, 3, 2))


def cases() -> Iterator[Case]:
    """Yield products of every element type, size, batch and layout."""
    for kind in ELEMENT_TYPES.values():
        if kind in FLOATS or kind.is_quantized:
            yield from _sizes(kind)
    for kind in (F32, F16, element_type("Q8_0"), element_type("Q4_K")):
        for batch in _BATCHES:
            yield _batched(kind, batch)
    for kind in (F32, F16, BF16, element_type("Q8_0"), element_type("Q4_0"), element_type("Q6_K")):
        yield from _layouts(kind)
    for kind in (F16, F32):
        yield _cache(kind, transposed=False)
        yield _cache(kind, transposed=True)


def tolerance(*kinds: ElementType) -> float:
    """The error that backends may make by rounding activations: to 8 bits with quantised weights, else none."""
    return 5e-4 if any(kind.is_quantized for kind in kinds) else 1e-6


def _sizes(kind: ElementType) -> Iterator[Case]:
    sizes = {1: _PLAIN, 32: _BLOCKS_OF_32, 256: _BLOCKS_OF_256}[kind.block_size]
    for k, m, n in sizes:

        def make(leaves: Leaves, k: int = k, m: int = m, n: int = n) -> Tensor:
            return build.mul_mat(leaves.weight(kind, (k, m, 1, 1)), leaves.tensor(F32, (k, n, 1, 1)))

        name = case_id("MUL_MAT", kind, extents(k, m), extents(k, n))
        yield Case(name, "MUL_MAT", make, tolerance=tolerance(kind))


def _batched(kind: ElementType, batch: tuple[int, int, int, int]) -> Case:
    a2, a3, r2, r3 = batch
    k, m, n = (256, 19, 5) if kind.is_quantized else (40, 19, 5)

    def make(leaves: Leaves) -> Tensor:
        a = leaves.tensor(kind, (k, m, a2, a3))
        return build.mul_mat(a, leaves.tensor(F32, (k, n, a2 * r2, a3 * r3)))

    name = case_id("MUL_MAT", kind, extents(k, m, a2, a3), extents(k, n, a2 * r2, a3 * r3), f"bcast{r2}x{r3}")
    return Case(name, "MUL_MAT", make, tolerance=tolerance(kind))


def _layouts(kind: ElementType) -> Iterator[Case]:
    for a_layout, b_layout, b_kind in _LAYOUTS:
        yield _layout(kind, a_layout, b_layout, b_kind)


def _layout(kind: ElementType, a_layout: Layout, b_layout: Layout, b_kind: ElementType) -> Case:
    k = 512 if kind.block_size == 256 else 96

    def make(leaves: Leaves) -> Tensor:
        a = leaves.tensor(kind, (k, 18, 3, 1), a_layout)
        return build.mul_mat(a, leaves.tensor(b_kind, (k, 7, 3, 1), b_layout))

    name = case_id("MUL_MAT", kind, extents(k, 18, 3), a_layout, b_kind, extents(k, 7, 3), b_layout)
    return Case(name, "MUL_MAT", make, tolerance=tolerance(kind))


def _cache(kind: ElementType, *, transposed: bool) -> Case:
    """Attention without FLASH_ATTN_EXT: keys are a permuted window of a cache, values lie transposed in it."""
    head, heads, kv_heads, n_kv, tokens = 24, 6, 2, 32, 3

    def make(leaves: Leaves) -> Tensor:
        if transposed:
            cache = leaves.tensor(kind, (48, head, kv_heads, 1))
            values = build.view(cache, (n_kv, head, kv_heads), cache.nb)
            return build.mul_mat(values, leaves.tensor(F32, (n_kv, tokens, heads, 1)))
        cache = leaves.tensor(kind, (head * kv_heads, 48, 1, 1))
        nb = (cache.nb[0], head * cache.nb[0], cache.nb[1], cache.nb[2])
        keys = build.permute(build.view(cache, (head, kv_heads, n_kv), nb), 0, 2, 1, 3)
        queries = build.permute(leaves.tensor(F32, (head, heads, tokens, 1)), 0, 2, 1, 3)
        return build.mul_mat(keys, queries)

    name = case_id("MUL_MAT", kind, "values" if transposed else "keys", "of a cache")
    return Case(name, "MUL_MAT", make, tolerance=tolerance(kind))
