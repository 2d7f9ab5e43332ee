"""Shape rules of operations that reduce, norm or order rows.

Belongs here: sums, indices of the largest, group norms. Must not be here: element-wise arithmetic (`rules`).

Source: the preconditions of ggml's tensor constructors.
"""

from __future__ import annotations

from rpc_backend.graph.element_types import F32, I32, I64
from rpc_backend.graph.ops.rules import Params, need, need_f32, need_floats, same, wanted
from rpc_backend.graph.ops.spec import Shape, Sources


def sum_rows(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Each row becomes its sum."""
    need_f32(sources[0])
    return Shape(F32, (1, *sources[0].ne[1:]))


def cumsum(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Each element becomes the sum of its row up to and with it."""
    need_f32(sources[0])
    return same(sources, params, asked)


def mean(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Each row becomes its mean."""
    return sum_rows(sources, params, asked)


def total(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """All elements become one."""
    need_floats(sources[0])
    return Shape(sources[0].type, (1, 1, 1, 1))


def count_equal(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """The count, I64, of places where two I32 sources of one shape are equal."""
    a, b = sources
    need(a.type is I32 and b.type is I32 and a.ne == b.ne, f"{a} and {b} must be I32 of one shape")
    return Shape(I64, (1, 1, 1, 1))


def group_norm(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` [n0, n1, channels, any], whose channels are normed in `n_groups` groups; the last may be smaller."""
    a, n_groups = sources[0], int(params["n_groups"])
    need_f32(a)
    need(0 < n_groups <= a.ne[2], f"{n_groups} groups of the channels of {a} do not exist")
    return Shape(F32, a.ne)


def argmax(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Per row of a matrix, the index of its largest element; of equals the first. A NaN is larger than any number."""
    a = sources[0]
    need(a.type is F32 and a.ne[2:] == (1, 1) and a.ne[0] > 0, f"{a} must be an F32 matrix")
    return Shape(I32, (a.ne[1], 1, 1, 1))


def argsort(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Per row, the indices that sort it; `order` 0 is ascending, 1 descending."""
    need_f32(sources[0])
    need(int(params["order"]) in (0, 1), f"order {params['order']} is neither 0 nor 1")
    return Shape(I32, sources[0].ne)


def top_k(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Per row, the indices of its `k` largest elements, the largest first, of equals the lower index first; k is the
    asked row length. A NaN is larger than any number. ggml promises no order."""
    (a,), want = sources, wanted(asked)
    need_f32(a)
    need(0 < want.ne[0] <= a.ne[0] and want.ne[1:] == a.ne[1:], f"top {want.ne[0]} of {a} does not exist")
    return Shape(I32, want.ne)
