"""Shape rules of products: of matrices, and of matrices chosen by index.

Belongs here: MUL_MAT and its kin. Must not be here: other families (`rules`).

Source: the preconditions of ggml's tensor constructors.
"""

from __future__ import annotations

from rpc_backend.graph.element_types import F32, I32
from rpc_backend.graph.ops.rules import Params, need, need_f32, need_floats
from rpc_backend.graph.ops.spec import Shape, Sources
from rpc_backend.graph.tensor import Tensor


def mul_mat(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` [k, m, a2, a3] times `b` [k, n, b2, b3] is [m, n, b2, b3]; a2 divides b2 and a3 divides b3."""
    a, b = sources
    need_floats(b)
    need(a.ne[0] == b.ne[0], f"{a} and {b} differ in their row length")
    need(not a.is_transposed, f"{a} is transposed; make it contiguous first")
    broadcast = a.ne[2] > 0 and a.ne[3] > 0 and b.ne[2] % a.ne[2] == 0 and b.ne[3] % a.ne[3] == 0
    need(broadcast, f"{a} does not broadcast over {b}")
    return Shape(F32, (a.ne[1], b.ne[1], b.ne[2], b.ne[3]))


def mul_mat_id(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`experts` [k, m, n_expert], `b` [k, n_used or 1, tokens], `ids` I32 [n_used, tokens]: each token's row times the
    matrices that its ids name is [m, n_used, tokens]."""
    experts, b, ids = sources
    need_floats(b)
    need(experts.ne[3] == 1 and b.ne[3] == 1, f"{experts} and {b} must have three axes")
    need(experts.ne[0] == b.ne[0], f"{experts} and {b} differ in their row length")
    need(not experts.is_transposed, f"{experts} is transposed; make it contiguous first")
    _need_ids(ids, b.ne[2])
    need(b.ne[1] > 0 and ids.ne[0] % b.ne[1] == 0, f"the rows of {b} do not divide the ids of {ids}")
    return Shape(F32, (experts.ne[1], ids.ne[0], b.ne[2], 1))


def add_id(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` [n, n_used, tokens] plus the rows of `b` [n, n_expert] that `ids` I32 [n_used, tokens] name."""
    a, b, ids = sources
    need_floats(a, b)
    need(a.ne[3] == 1 and b.ne[2:] == (1, 1) and a.ne[0] == b.ne[0], f"the rows of {b} do not fit {a}")
    _need_ids(ids, a.ne[2])
    need(ids.ne[0] == a.ne[1], f"{ids} has no id per row of {a}")
    return Shape(a.type, a.ne)


def _need_ids(ids: Tensor, n_tokens: int) -> None:
    need(ids.type is I32 and ids.ne[2:] == (1, 1), f"ids {ids} must be an I32 matrix")
    need(ids.ne[1] == n_tokens, f"{ids} has no ids for each of {n_tokens} tokens")


def out_prod(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` [m, k, a2, a3] times `b` [n, k, b2, b3], summed over k, is [m, n, b2, b3]; a2 divides b2 and a3 b3."""
    a, b = sources
    need_f32(a, b)
    need(a.ne[1] == b.ne[1], f"{a} and {b} differ in their count of rows")
    broadcast = a.ne[2] > 0 and a.ne[3] > 0 and b.ne[2] % a.ne[2] == 0 and b.ne[3] % a.ne[3] == 0
    need(broadcast, f"{a} does not broadcast over {b}")
    return Shape(F32, (a.ne[0], b.ne[0], b.ne[2], b.ne[3]))
