"""Cases of products with matrices chosen by index, and of outer products.

Belongs here: MUL_MAT_ID, ADD_ID, OUT_PROD. Must not be here: anything else.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rpc_backend.graph import ELEMENT_TYPES, ElementType, Tensor, build
from rpc_backend.graph.element_types import F16, F32, FLOATS, I32, element_type
from rpc_backend.testing.backend_suite.case import Case, case_id, extents
from rpc_backend.testing.backend_suite.cases_products import tolerance
from rpc_backend.testing.backend_suite.leaves import Layout, Leaves

_N_EXPERTS = 5
_SIZES = ((1, 1, 1), (2, 1, 1), (2, 1, 7), (2, 2, 7), (4, 2, 3), (3, 1, 40))
"""Ids of a token, rows of `b` of a token, tokens."""


def cases() -> Iterator[Case]:
    """Yield all of them."""
    for kind in ELEMENT_TYPES.values():
        if kind in FLOATS or kind.is_quantized:
            yield _product(kind, 2, 1, 1)
            yield _product(kind, 2, 2, 9)
    for kind in (F32, element_type("Q8_0"), element_type("MXFP4")):
        for n_used, n_rows, tokens in _SIZES:
            yield _product(kind, n_used, n_rows, tokens, "sizes")
    for layout in ("padded", "permuted"):
        yield _product(F32, 2, 2, 9, "b", b_layout=layout)
    for kind in (F32, element_type("Q8_0")):
        for outside in (-1, _N_EXPERTS, 2**31 - 1):
            yield _outside("MUL_MAT_ID", kind, outside)
    yield _outside("ADD_ID", F32, _N_EXPERTS)
    for n_used, tokens in ((1, 1), (2, 7), (4, 3)):
        yield _add(n_used, tokens)
    for batch in ((1, 1, 1, 1), (2, 1, 2, 3), (1, 2, 3, 1)):
        yield _outer(*batch)
    yield _layer_of_experts(element_type("Q8_0"))
    yield _layer_of_experts(F16)


def _ids(leaves: Leaves, n_used: int, tokens: int) -> Tensor:
    """Return the leading columns of a matrix of all ids, as the order of experts is: distinct per token."""
    ordered = leaves.indices(I32, (_N_EXPERTS, tokens, 1, 1), _N_EXPERTS)
    return build.view(ordered, (n_used, tokens), ordered.nb)


def _product(
    kind: ElementType, n_used: int, n_rows: int, tokens: int, what: str = "", b_layout: Layout = "packed"
) -> Case:  # fmt: skip
    k, m = (512 if kind.block_size == 256 else 96), 34

    def make(leaves: Leaves) -> Tensor:
        experts = leaves.weight(kind, (k, m, _N_EXPERTS, 1))
        return build.mul_mat_id(
            experts, leaves.tensor(F32, (k, n_rows, tokens, 1), b_layout), _ids(leaves, n_used, tokens)
        )

    parts = (kind, extents(k, m, _N_EXPERTS), extents(k, n_rows, tokens), b_layout, f"used{n_used}", what)
    return Case(case_id("MUL_MAT_ID", *parts), "MUL_MAT_ID", make, tolerance=tolerance(kind))


def _outside(op: str, kind: ElementType, outside: int) -> Case:
    good, bad = np.array([[0, 3], [4, 1]]), np.array([[0, 3], [outside, 1]])

    def make(leaves: Leaves) -> Tensor:
        ids = leaves.constant(I32, (2, 2, 1, 1), bad, good)
        if op == "ADD_ID":
            return build.add_id(leaves.tensor(kind, (64, 2, 2, 1)), leaves.weight(kind, (64, _N_EXPERTS, 1, 1)), ids)
        experts = leaves.weight(kind, (64, 20, _N_EXPERTS, 1))
        return build.mul_mat_id(experts, leaves.tensor(F32, (64, 1, 2, 1)), ids)

    name = case_id(op, kind, f"id {outside} of {_N_EXPERTS}")
    return Case(name, op, make, tolerance=tolerance(kind), fails_first=True)


def _add(n_used: int, tokens: int) -> Case:
    def make(leaves: Leaves) -> Tensor:
        a, b = leaves.tensor(F32, (35, n_used, tokens, 1)), leaves.weight(F32, (35, _N_EXPERTS, 1, 1))
        return build.add_id(a, b, _ids(leaves, n_used, tokens))

    return Case(case_id("ADD_ID", "F32", extents(35, n_used, tokens)), "ADD_ID", make)


def _outer(a2: int, a3: int, r2: int, r3: int) -> Case:
    def make(leaves: Leaves) -> Tensor:
        a = leaves.tensor(F32, (17, 6, a2, a3))
        return build.out_prod(a, leaves.tensor(F32, (9, 6, a2 * r2, a3 * r3)))

    return Case(case_id("OUT_PROD", "F32", extents(17, 6, a2, a3), f"bcast{r2}x{r3}"), "OUT_PROD", make)


def _layer_of_experts(kind: ElementType) -> Case:
    """A router picks two of five experts for each of four tokens, and their gated products are mixed."""
    width, inner, tokens, n_used = 64, 96, 4, 2

    def make(leaves: Leaves) -> Tensor:
        x = leaves.tensor(F32, (width, tokens, 1, 1))
        scores = build.soft_max(build.mul_mat(leaves.weight(F32, (width, _N_EXPERTS, 1, 1)), x))
        order = build.argsort(scores, descending=True)
        ids = build.view(order, (n_used, tokens), order.nb)
        shares = build.get_rows(build.reshape(scores, (1, _N_EXPERTS, tokens)), ids)
        rows = build.reshape(x, (width, 1, tokens))
        up = build.mul_mat_id(leaves.weight(kind, (width, inner, _N_EXPERTS, 1)), rows, ids)
        down = build.mul_mat_id(leaves.weight(kind, (inner, width, _N_EXPERTS, 1)), up, ids)
        mixed = build.mul(down, shares)
        first, second = (
            build.view(mixed, (width, tokens), (mixed.nb[0], mixed.nb[2], *mixed.nb[2:]), slot * mixed.nb[1])
            for slot in range(n_used)
        )
        return build.add(first, second)

    return Case(case_id("ADD", "a layer of experts", kind), "ADD", make, tolerance=4 * tolerance(kind))
