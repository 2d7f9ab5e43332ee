"""Cases of rows by index and of order within rows.

Belongs here: GET_ROWS, SET_ROWS, ARGMAX, ARGSORT, TOP_K. Must not be here: anything else.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rpc_backend.graph import ELEMENT_TYPES, ElementType, Tensor, build
from rpc_backend.graph.element_types import BF16, F16, F32, FLOATS, I32, I64, element_type
from rpc_backend.testing.backend_suite.case import Case, Measure, case_id, extents
from rpc_backend.testing.backend_suite.leaves import Array, Layout, Leaves

_TARGETS = {F32: 0.0, F16: 0.0, BF16: 0.0} | {
    element_type(name): tolerance
    for name, tolerance in {"Q8_0": 5e-6, "Q4_0": 1e-3, "Q4_1": 1e-3, "Q5_0": 3e-4, "Q5_1": 3e-4}.items()
}
_OUTSIDE = (-1, 9, 2**31 - 1, -(2**31))


def cases() -> Iterator[Case]:
    """Yield all of them."""
    yield from _get_cases()
    yield from _set_cases()
    yield from _outside_cases()
    yield from _argmax_cases()
    yield from _order_cases()


def _get_cases() -> Iterator[Case]:
    for kind in ELEMENT_TYPES.values():
        if kind in FLOATS or kind is I32 or kind.is_quantized:
            for n_blocks, n_rows in ((1, 1), (3, 5)):
                yield _get(kind, (33 if kind.block_size == 1 else kind.block_size) * n_blocks, 40, n_rows, (1, 1))
            yield _get(kind, max(kind.block_size, 32) * 2, 9, 33, (2, 3))
    for kind in (F32, F16, element_type("Q8_0"), element_type("Q4_K")):
        yield _get(kind, max(kind.block_size, 32) * 2, 9, 7, (1, 1), I64)
        for layout in ("padded", "sliced", "permuted"):
            yield _get(kind, max(kind.block_size, 32) * 2, 9, 7, (2, 1), I32, layout)
    yield _get(element_type("Q8_0"), 576, 300, 128, (1, 1))


def _get(
    kind: ElementType, k: int, n_rows: int, n_picked: int, batch: tuple[int, int], index: ElementType = I32,
    layout: Layout = "packed",
) -> Case:  # fmt: skip
    def make(leaves: Leaves) -> Tensor:
        table = leaves.tensor(kind, (k, n_rows, *batch), layout)
        return build.get_rows(table, leaves.indices(index, (n_picked, *batch, 1), n_rows))

    measure: Measure = "nmse" if kind.is_quantized else "exact"
    name = case_id("GET_ROWS", kind, extents(k, n_rows, *batch), layout, index, n_picked)
    return Case(name, "GET_ROWS", make, measure, 1e-12 if kind.is_quantized else 0.0)


def _set_cases() -> Iterator[Case]:
    for kind in _TARGETS:
        for index in (I64, I32):
            yield _set(kind, (1, 1), (1, 1), index)
        yield _set(kind, (4, 2), (4, 2), I64)
        yield _set(kind, (4, 2), (2, 1), I64)
    for kind in (F32, F16, element_type("Q8_0")):
        for layout in ("padded", "sliced", "permuted"):
            yield _set(kind, (2, 1), (2, 1), I64, layout, "packed")
            yield _set(kind, (2, 1), (1, 1), I64, "packed", layout)
        yield _set(kind, (4, 2), (2, 1), I64, values_kind=F16)
    for kind in (F32, F16):
        yield _set_elements(kind)


def _set(
    kind: ElementType, batch: tuple[int, int], index_batch: tuple[int, int], index: ElementType,
    target_layout: Layout = "packed", values_layout: Layout = "packed", values_kind: ElementType = F32,
) -> Case:  # fmt: skip
    k, n_rows, n_written = 96 if kind.is_quantized else 35, 11, 6

    def make(leaves: Leaves) -> Tensor:
        target = leaves.tensor(kind, (k, n_rows, *batch), target_layout)
        values = leaves.tensor(values_kind, (k, n_written, *batch), values_layout)
        return build.set_rows(target, values, leaves.indices(index, (n_written, *index_batch, 1), n_rows))

    tolerance = _TARGETS[kind]
    half = "" if values_kind is F32 else f"values {values_kind}"
    parts = (extents(k, n_rows, *batch), target_layout, values_layout, index, extents(n_written, *index_batch), half)
    name = case_id("SET_ROWS", kind, *parts)
    return Case(name, "SET_ROWS", make, "nmse" if tolerance else "exact", tolerance)


def _set_elements(kind: ElementType) -> Case:
    """Values of a transposed cache: every element is a row of its own."""

    def make(leaves: Leaves) -> Tensor:
        target, values = leaves.tensor(kind, (1, 300, 1, 1)), leaves.tensor(F32, (1, 64, 1, 1))
        return build.set_rows(target, values, leaves.indices(I64, (64, 1, 1, 1), 300))

    return Case(case_id("SET_ROWS", kind, "1x300", "elements"), "SET_ROWS", make, "exact", 0.0)


def _outside_cases() -> Iterator[Case]:
    for index in (I32, I64):
        for outside in (*_OUTSIDE, *((2**40, -(2**40), 2**63 - 1) if index is I64 else ())):
            for op in ("GET_ROWS", "SET_ROWS"):
                for kind in (F32, element_type("Q8_0")):
                    yield _outside(op, kind, index, outside)


def _outside(op: str, kind: ElementType, index: ElementType, outside: int) -> Case:
    good = np.array([0, 3, 8, 5, 1])
    bad = np.array([0, 3, outside, 5, 1])

    def make(leaves: Leaves) -> Tensor:
        table, rows = leaves.tensor(kind, (64, 9, 1, 1)), leaves.constant(index, (5, 1, 1, 1), bad, good)
        if op == "GET_ROWS":
            return build.get_rows(table, rows)
        return build.set_rows(table, leaves.tensor(F32, (64, 5, 1, 1)), rows)

    name = case_id(op, kind, index, f"row {outside} of 9")
    return Case(name, op, make, tolerance=_TARGETS[kind] + 1e-12, fails_first=True)


def _argmax_cases() -> Iterator[Case]:
    for n, m in ((1, 1), (7, 3), (33, 17), (1000, 4)):
        yield _argmax(n, m, "packed")
    yield _argmax(65, 5, "padded")
    yield _argmax(65, 5, "transposed")
    ties = np.array([[1, 3, 3, 0, 3], [-2, -2, -2, -2, -2], [0, 0, 0, 0, 1]], "f4")
    yield Case(
        case_id("ARGMAX", "F32", "ties"), "ARGMAX",
        lambda leaves: build.argmax(leaves.constant(F32, (5, 3, 1, 1), ties, ties[:, ::-1])), "exact", 0.0,
    )  # fmt: skip
    yield Case(
        case_id("ARGMAX", "F32", "infinities and NaN"), "ARGMAX",
        lambda leaves: build.argmax(leaves.constant(F32, (150, 6, 1, 1), *_odd_rows(150))), "exact", 0.0,
    )  # fmt: skip
    yield _argmax(49152, 3, "packed")


def _argmax(n: int, m: int, layout: Layout) -> Case:
    def make(leaves: Leaves) -> Tensor:
        return build.argmax(leaves.tensor(F32, (n, m, 1, 1), layout))

    return Case(case_id("ARGMAX", "F32", extents(n, m), layout), "ARGMAX", make, "exact", 0.0)


def _order_cases() -> Iterator[Case]:
    for n in (1, 2, 33, 1000):
        for descending in (False, True):
            yield _argsort(n, descending, "packed")
    yield _argsort(65, True, "padded")
    yield _argsort(65, False, "permuted")
    yield _argsort(40, True, "packed", ties=True)
    for n, k in ((1, 1), (33, 1), (33, 5), (33, 33), (1000, 40), (1000, 999), (49152, 64)):
        yield _top_k(n, k, "packed")
    for layout in ("padded", "permuted", "transposed"):
        yield _top_k(165, 8, layout)
    for n, k in ((40, 8), (300, 17), (300, 300)):
        yield _top_k(n, k, "packed", ties=True)
    for k in (1, 5, 140):
        yield Case(
            case_id("TOP_K", "F32", "infinities and NaN", f"k{k}"), "TOP_K",
            lambda leaves, k=k: build.top_k(leaves.constant(F32, (150, 6, 1, 1), *_odd_rows(150)), k), "exact", 0.0,
        )  # fmt: skip


def _odd_rows(n: int) -> tuple[Array, Array]:
    """Six rows, rising, falling and with every kind of odd number, and the same in another order."""
    rows = np.random.default_rng(5).normal(size=(6, n))
    rows[0], rows[1] = np.arange(n), -np.arange(n)
    rows[2, [7, 90, n - 1]], rows[2, 11] = np.nan, np.inf
    rows[3, ::2], rows[3, [1, 33]] = -np.inf, np.inf
    rows[4], rows[5, ::3] = -np.inf, 0.0
    rows[5, 1::3] = -0.0
    return rows, rows[::-1, ::-1]


def _with_ties(n: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, n // 3, n * 6)


def _rows(leaves: Leaves, n: int, layout: Layout, ties: bool) -> Tensor:
    if ties:
        return leaves.constant(F32, (n, 3, 2, 1), _with_ties(n, 1), _with_ties(n, 2))
    return leaves.tensor(F32, (n, 3, 2, 1), layout)


def _argsort(n: int, descending: bool, layout: Layout, *, ties: bool = False) -> Case:
    def make(leaves: Leaves) -> Tensor:
        return build.argsort(_rows(leaves, n, layout, ties), descending=descending)

    parts = (extents(n, 3, 2), layout, "descending" if descending else "ascending", "ties" if ties else "")
    return Case(case_id("ARGSORT", "F32", *parts), "ARGSORT", make, "order", 0.0)


def _top_k(n: int, k: int, layout: Layout, *, ties: bool = False) -> Case:
    def make(leaves: Leaves) -> Tensor:
        return build.top_k(_rows(leaves, n, layout, ties), k)

    name = case_id("TOP_K", "F32", extents(n, 3, 2), layout, f"k{k}", "ties" if ties else "")
    return Case(name, "TOP_K", make, "exact", 0.0)
