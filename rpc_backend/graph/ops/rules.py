"""Shape rules: which result shape each operation's sources allow.

Belongs here: one function per family of operations, each a `ShapeRule`. Must not be here: checks of
memory bounds (`validate`) or of what a backend supports.

Source: the preconditions of ggml's tensor constructors (`ggml_add`, `ggml_mul_mat`, …).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from rpc_backend.errors import GraphError
from rpc_backend.graph.element_types import F16, F32, FLOATS, I32, I64
from rpc_backend.graph.ops.functions import Glu, RopeMode, Unary
from rpc_backend.graph.ops.spec import Shape, Sources
from rpc_backend.graph.tensor import Extents, Tensor

Params = Mapping[str, int | float]


def need(condition: bool, text: str) -> None:
    """Raise GraphError with `text` unless the condition holds."""
    if not condition:
        raise GraphError(text)


def _wanted(asked: Shape | None) -> Shape:
    if asked is None:
        raise GraphError("this operation needs the shape of its result")
    return asked


def _repeats_into(small: Tensor, ne: Extents) -> bool:
    return all(have > 0 and want % have == 0 for have, want in zip(small.ne, ne, strict=True)) or 0 in ne


def _need_floats(*tensors: Tensor) -> None:
    for tensor in tensors:
        need(tensor.type in FLOATS, f"{tensor} must hold floats")


def same(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """The result is shaped like the first source."""
    return Shape(sources[0].type, sources[0].ne)


def binary(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`b` repeats into `a` along every axis."""
    a, b = sources
    _need_floats(a, b)
    need(_repeats_into(b, a.ne), f"{b} does not repeat into {a}")
    return Shape(a.type, a.ne)


def floats(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """A float source; the result is shaped like it."""
    _need_floats(sources[0])
    return same(sources, params, asked)


def _need_member(kind: type[IntEnum], value: int | float) -> None:
    names = ", ".join(f"{member.value} ({member.name})" for member in kind)
    need(value in {member.value for member in kind}, f"{kind.__name__} {value} is not known; known: {names}")


def unary(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """An element-wise function of a float source."""
    _need_member(Unary, params["function"])
    return floats(sources, params, asked)


def glu(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Gate and value are two sources of one shape, or the two halves of each row."""
    a = sources[0]
    _need_floats(*sources)
    _need_member(Glu, params["function"])
    if len(sources) == 2:
        b = sources[1]
        need(a.ne == b.ne and a.type == b.type, f"{a} and {b} must have one shape and type")
        return Shape(a.type, a.ne)
    need(a.ne[0] % 2 == 0, f"{a} has an odd row length, it cannot be halved")
    return Shape(a.type, (a.ne[0] // 2, *a.ne[1:]))


def copy(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` is written over `b`, which has as many elements; the result is `b`."""
    a, b = sources
    need(a.n_elements == b.n_elements, f"{a} and {b} differ in their count of elements")
    return Shape(b.type, b.ne)


def reshape(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Other extents over the same packed elements."""
    (a,), want = sources, _wanted(asked)
    need(a.is_contiguous, f"{a} is not contiguous, it cannot be reshaped")
    need(a.n_elements == Tensor(a.type, want.ne).n_elements, f"{a} has another count of elements than {list(want.ne)}")
    return Shape(a.type, want.ne)


def view(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """A window on the source; `validate` checks that it lies inside."""
    return Shape(sources[0].type, _wanted(asked).ne)


def permute(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Axis i of the source becomes axis `axis{i}` of the result."""
    axes = [int(params[f"axis{i}"]) for i in range(4)]
    need(sorted(axes) == [0, 1, 2, 3], f"{axes} is not a permutation of the four axes")
    ne = [0, 0, 0, 0]
    for source_axis, axis in enumerate(axes):
        ne[axis] = sources[0].ne[source_axis]
    return Shape(sources[0].type, (ne[0], ne[1], ne[2], ne[3]))


def transpose(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """The first two axes change places."""
    ne = sources[0].ne
    return Shape(sources[0].type, (ne[1], ne[0], ne[2], ne[3]))


def get_rows(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`rows` [n, ne2, ne3] picks rows of `a` [k, any, ne2, ne3]."""
    a, rows = sources
    need(rows.type in (I32, I64), f"row indices must be I32 or I64, {rows} is not")
    need(a.ne[2] == rows.ne[1] and a.ne[3] == rows.ne[2] and rows.ne[3] == 1, f"{rows} does not index rows of {a}")
    return Shape(I32 if a.type is I32 else F32, (a.ne[0], rows.ne[0], rows.ne[1], rows.ne[2]))


def set_rows(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`values` rows are written over rows `rows` of `target`; the result is `target`."""
    values, rows, target = sources
    need(values.type is F32, f"{values} must be F32")
    need(rows.type in (I32, I64), f"row indices must be I32 or I64, {rows} is not")
    need(values.ne[0] == target.ne[0] and values.ne[2:] == target.ne[2:], f"{values} has not the rows of {target}")
    fits = rows.ne[0] == values.ne[1] and rows.ne[3] == 1 and rows.ne[1] > 0 and rows.ne[2] > 0
    need(
        fits and values.ne[2] % rows.ne[1] == 0 and values.ne[3] % rows.ne[2] == 0,
        f"{rows} does not index the rows of {values}",
    )
    return Shape(target.type, target.ne)


def mul_mat(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` [k, m, a2, a3] times `b` [k, n, b2, b3] is [m, n, b2, b3]; a2 divides b2 and a3 divides b3."""
    a, b = sources
    _need_floats(b)
    need(a.ne[0] == b.ne[0], f"{a} and {b} differ in their row length")
    need(not a.is_transposed, f"{a} is transposed; make it contiguous first")
    broadcast = a.ne[2] > 0 and a.ne[3] > 0 and b.ne[2] % a.ne[2] == 0 and b.ne[3] % a.ne[3] == 0
    need(broadcast, f"{a} does not broadcast over {b}")
    return Shape(F32, (a.ne[1], b.ne[1], b.ne[2], b.ne[3]))


def rope(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` [head, heads, tokens, any], `positions` I32 [tokens], optional `factors` F32 [n_dims / 2]."""
    a, positions = sources[:2]
    _need_floats(a)
    need(positions.type is I32 and positions.ne == (a.ne[2], 1, 1, 1), f"{positions} has no position per token of {a}")
    n_dims = int(params["n_dims"])
    need(0 < n_dims <= a.ne[0] and n_dims % 2 == 0, f"rope n_dims {n_dims} does not fit rows of {a.ne[0]}")
    _need_member(RopeMode, params["mode"])
    if len(sources) == 3:
        need(sources[2].type is F32 and sources[2].ne[0] >= n_dims // 2, f"{sources[2]} has too few factors")
    return Shape(a.type, a.ne)


def _need_mask(mask: Tensor, ne: Extents) -> None:
    need(mask.type in (F16, F32) and mask.is_contiguous, f"mask {mask} must be contiguous F16 or F32")
    fits = mask.ne[0] == ne[0] and mask.ne[1] >= ne[1] and mask.ne[2] > 0 and mask.ne[3] > 0
    need(fits and ne[2] % mask.ne[2] == 0 and ne[3] % mask.ne[3] == 0, f"mask {mask} does not cover {list(ne)}")


def soft_max(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Rows of `a`, optional `mask` that broadcasts over them; ALiBi needs a mask."""
    a = sources[0]
    need(a.type is F32, f"{a} must be F32")
    if len(sources) == 2:
        _need_mask(sources[1], a.ne)
    need(len(sources) == 2 or params["max_bias"] == 0, "max_bias needs a mask")
    return Shape(F32, a.ne)


def flash_attn_ext(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`q` [hk, tokens, heads, streams], `k` [hk, kv, kv_heads, streams], `v` [hv, kv, kv_heads, streams],
    optional `mask` [kv, ≥ tokens, …]; the result is [hv, heads, tokens, streams]."""
    q, k, v = sources[:3]
    need(q.type is F32, f"{q} must be F32")
    need(q.ne[0] == k.ne[0] and k.ne[1:] == v.ne[1:], f"{q}, {k} and {v} do not fit")
    heads = k.ne[2] > 0 and k.ne[3] > 0 and q.ne[2] % k.ne[2] == 0 and q.ne[3] % k.ne[3] == 0
    need(heads, f"the heads of {k} do not divide those of {q}")
    if len(sources) == 4:
        _need_mask(sources[3], (k.ne[1], q.ne[1], q.ne[2], q.ne[3]))
    need(len(sources) == 4 or params["max_bias"] == 0, "max_bias needs a mask")
    return Shape(F32, (v.ne[0], q.ne[2], q.ne[1], q.ne[3]))


def concat(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` then `b` along axis `dim`."""
    (a, b), dim = sources, int(params["dim"])
    need(0 <= dim < 4, f"concat axis {dim} is not one of 0 to 3")
    alike = all(a.ne[axis] == b.ne[axis] for axis in range(4) if axis != dim)
    need(alike and a.type == b.type, f"{a} and {b} do not join along axis {dim}")
    ne = list(a.ne)
    ne[dim] += b.ne[dim]
    return Shape(a.type, (ne[0], ne[1], ne[2], ne[3]))


def repeat(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` repeated whole along each axis up to the asked extents."""
    (a,), want = sources, _wanted(asked)
    need(_repeats_into(a, want.ne), f"{a} does not repeat into {list(want.ne)}")
    return Shape(a.type, want.ne)


def sum_rows(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Each row becomes its sum."""
    need(sources[0].type is F32, f"{sources[0]} must be F32")
    return Shape(F32, (1, *sources[0].ne[1:]))


def cumsum(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Each element becomes the sum of its row up to and with it."""
    need(sources[0].type is F32, f"{sources[0]} must be F32")
    return same(sources, params, asked)


def clamp(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Elements below `min` become `min`, those above `max` become `max`."""
    need(params["min"] <= params["max"], f"clamp bounds {params['min']} and {params['max']} leave nothing between them")
    return floats(sources, params, asked)


def argmax(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Per row of a matrix, the index of its largest element; of equals the first. A NaN is larger than any number."""
    a = sources[0]
    need(a.type is F32 and a.ne[2:] == (1, 1) and a.ne[0] > 0, f"{a} must be an F32 matrix")
    return Shape(I32, (a.ne[1], 1, 1, 1))


def argsort(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Per row, the indices that sort it; `order` 0 is ascending, 1 descending."""
    need(sources[0].type is F32, f"{sources[0]} must be F32")
    need(int(params["order"]) in (0, 1), f"order {params['order']} is neither 0 nor 1")
    return Shape(I32, sources[0].ne)


def top_k(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Per row, the indices of its `k` largest elements, the largest first, of equals the lower index first; k is the
    asked row length. A NaN is larger than any number. ggml promises no order."""
    (a,), want = sources, _wanted(asked)
    need(a.type is F32, f"{a} must be F32")
    need(0 < want.ne[0] <= a.ne[0] and want.ne[1:] == a.ne[1:], f"top {want.ne[0]} of {a} does not exist")
    return Shape(I32, want.ne)
