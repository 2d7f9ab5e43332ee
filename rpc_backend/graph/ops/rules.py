"""Shape rules: which result shape each operation's sources allow.

Belongs here: one function per family of operations, each a `ShapeRule`. Must not be here: checks of
memory bounds (`validate`) or of what a backend supports.

Source: the preconditions of ggml's tensor constructors (`ggml_add`, `ggml_mul_mat`, …).
"""

from __future__ import annotations

import math
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


def wanted(asked: Shape | None) -> Shape:
    """Return the asked shape; raise GraphError if none was."""
    if asked is None:
        raise GraphError("this operation needs the shape of its result")
    return asked


def _repeats_into(small: Tensor, ne: Extents) -> bool:
    return all(have > 0 and want % have == 0 for have, want in zip(small.ne, ne, strict=True)) or 0 in ne


def need_floats(*tensors: Tensor) -> None:
    """Raise GraphError unless all hold F32, F16 or BF16."""
    for tensor in tensors:
        need(tensor.type in FLOATS, f"{tensor} must hold floats")


def need_f32(*tensors: Tensor) -> None:
    """Raise GraphError unless all hold F32."""
    for tensor in tensors:
        need(tensor.type is F32, f"{tensor} must be F32")


def same(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """The result is shaped like the first source."""
    return Shape(sources[0].type, sources[0].ne)


def packed(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """The elements of the first source in order; the result may have other extents."""
    a = sources[0]
    if asked is None:
        return Shape(a.type, a.ne)
    need(a.n_elements == math.prod(asked.ne), f"{a} has another count of elements than {list(asked.ne)}")
    return Shape(a.type, asked.ne)


def binary(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`b` repeats into `a` along every axis."""
    a, b = sources
    need_floats(a, b)
    need(_repeats_into(b, a.ne), f"{b} does not repeat into {a}")
    return Shape(a.type, a.ne)


def add_one(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """The one element of `b` is added to every element of `a`."""
    a, b = sources
    need_floats(a, b)
    need(b.ne == (1, 1, 1, 1), f"{b} is not a single element")
    return Shape(a.type, a.ne)


def floats(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """A float source; the result is shaped like it."""
    need_floats(sources[0])
    return same(sources, params, asked)


def need_member(kind: type[IntEnum], value: int | float) -> None:
    """Raise GraphError unless an enumeration has this number."""
    names = ", ".join(f"{member.value} ({member.name})" for member in kind)
    need(value in {member.value for member in kind}, f"{kind.__name__} {value} is not known; known: {names}")


def unary(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """An element-wise function of a float source. XIELU reads the parameters behind the function."""
    need_member(Unary, params["function"])
    return floats(sources, params, asked)


def glu(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Gate and value are two sources of one shape, or the two halves of each row. SWIGLU_OAI reads `alpha` and
    `limit`, SWIGLU_CLAMP `limit`."""
    a = sources[0]
    need_floats(*sources)
    need_member(Glu, params["function"])
    if params["function"] in (Glu.SWIGLU_OAI, Glu.SWIGLU_CLAMP):
        need(params["limit"] >= 0, f"limit {params['limit']} is not 0 or more")
    if len(sources) == 2:
        b = sources[1]
        need(a.ne == b.ne and a.type == b.type, f"{a} and {b} must have one shape and type")
        return Shape(a.type, a.ne)
    need(a.ne[0] % 2 == 0, f"{a} has an odd row length, it cannot be halved")
    return Shape(a.type, (a.ne[0] // 2, *a.ne[1:]))


def copy(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` is written over `b`, which has as many elements; the result is `b`. Without `b` the result is new."""
    a = sources[0]
    want = Shape(sources[1].type, sources[1].ne) if len(sources) == 2 else wanted(asked)
    need(a.n_elements == math.prod(want.ne), f"{a} and {list(want.ne)} differ in their count of elements")
    return want


def reshape(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Other extents over the same packed elements."""
    (a,), want = sources, wanted(asked)
    need(a.is_contiguous, f"{a} is not contiguous, it cannot be reshaped")
    need(a.n_elements == math.prod(want.ne), f"{a} has another count of elements than {list(want.ne)}")
    return Shape(a.type, want.ne)


def view(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """A window on the source; `validate` checks that it lies inside."""
    return Shape(sources[0].type, wanted(asked).ne)


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
    need(values.type in (F32, F16), f"{values} must be F32 or F16")
    need(rows.type in (I32, I64), f"row indices must be I32 or I64, {rows} is not")
    need(values.ne[0] == target.ne[0] and values.ne[2:] == target.ne[2:], f"{values} has not the rows of {target}")
    fits = rows.ne[0] == values.ne[1] and rows.ne[3] == 1 and rows.ne[1] > 0 and rows.ne[2] > 0
    need(
        fits and values.ne[2] % rows.ne[1] == 0 and values.ne[3] % rows.ne[2] == 0,
        f"{rows} does not index the rows of {values}",
    )
    return Shape(target.type, target.ne)


def rope(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`a` [head, heads, tokens, any], `positions` I32 [tokens], with sections [4 * tokens], optional `factors` F32
    [n_dims / 2]; the `n_dims` elements from `n_offset` on are turned."""
    a, positions = sources[:2]
    need_floats(a)
    need_member(RopeMode, params["mode"])
    mode, n_dims, n_offset = RopeMode(int(params["mode"])), int(params["n_dims"]), int(params["n_offset"])
    n_positions = a.ne[2] * (4 if mode.has_sections else 1)
    need(
        positions.type is I32 and positions.ne == (n_positions, 1, 1, 1),
        f"{positions} has no position per token of {a}",
    )
    need(0 < n_dims <= a.ne[0] and n_dims % 2 == 0, f"rope n_dims {n_dims} does not fit rows of {a.ne[0]}")
    fits = n_offset % 2 == 0 and 0 <= n_offset <= a.ne[0] - n_dims
    need(fits, f"rope n_offset {n_offset} does not fit {n_dims} of {a.ne[0]} elements")
    if mode.has_sections:
        _need_sections(params, a.ne[0])
    if mode is RopeMode.VISION:
        need(
            n_dims * 2 == a.ne[0] and n_offset == 0, f"VISION turns whole rows of two halves, not {n_dims} of {a.ne[0]}"
        )
    if len(sources) == 3:
        need(sources[2].type is F32 and sources[2].ne[0] >= n_dims // 2, f"{sources[2]} has too few factors")
        need(mode is not RopeMode.VISION, "VISION takes no factors")
    return Shape(a.type, a.ne)


def _need_sections(params: Params, row: int) -> None:
    sections = [int(params[f"section{i}"]) for i in range(4)]
    good = min(sections) >= 0 and sum(sections[:3]) > 0 and sum(sections) <= row
    need(good, f"rope sections {sections} do not fit rows of {row}")


def _need_mask(mask: Tensor, ne: Extents) -> None:
    need(mask.type in (F16, F32) and mask.is_contiguous, f"mask {mask} must be contiguous F16 or F32")
    fits = mask.ne[0] == ne[0] and mask.ne[1] >= ne[1] and mask.ne[2] > 0 and mask.ne[3] > 0
    need(fits and ne[2] % mask.ne[2] == 0 and ne[3] % mask.ne[3] == 0, f"mask {mask} does not cover {list(ne)}")


def _need_sinks(sources: Sources, at: int, heads: int) -> None:
    if len(sources) > at:
        sinks = sources[at]
        need(sinks.type is F32 and sinks.ne == (heads, 1, 1, 1), f"sinks {sinks} are not one F32 per head of {heads}")


def soft_max(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Rows of `a`, optional `mask` that broadcasts over them, optional `sinks` F32 [heads]; ALiBi needs a mask."""
    a = sources[0]
    need_f32(a)
    if len(sources) >= 2:
        _need_mask(sources[1], a.ne)
    need(len(sources) >= 2 or params["max_bias"] == 0, "max_bias needs a mask")
    _need_sinks(sources, 2, a.ne[2])
    return Shape(F32, a.ne)


def flash_attn_ext(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """`q` [hk, tokens, heads, streams], `k` [hk, kv, kv_heads, streams], `v` [hv, kv, kv_heads, streams],
    optional `mask` [kv, ≥ tokens, …], optional `sinks` F32 [heads]; the result is [hv, heads, tokens, streams]."""
    q, k, v = sources[:3]
    need_f32(q)
    need(q.ne[0] == k.ne[0] and k.ne[1:] == v.ne[1:], f"{q}, {k} and {v} do not fit")
    heads = k.ne[2] > 0 and k.ne[3] > 0 and q.ne[2] % k.ne[2] == 0 and q.ne[3] % k.ne[3] == 0
    need(heads, f"the heads of {k} do not divide those of {q}")
    if len(sources) >= 4:
        _need_mask(sources[3], (k.ne[1], q.ne[1], q.ne[2], q.ne[3]))
    need(len(sources) >= 4 or params["max_bias"] == 0, "max_bias needs a mask")
    _need_sinks(sources, 4, q.ne[2])
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
    (a,), want = sources, wanted(asked)
    need(_repeats_into(a, want.ne), f"{a} does not repeat into {list(want.ne)}")
    return Shape(a.type, want.ne)


def clamp(sources: Sources, params: Params, asked: Shape | None) -> Shape:
    """Elements below `min` become `min`, those above `max` become `max`."""
    need(params["min"] <= params["max"], f"clamp bounds {params['min']} and {params['max']} leave nothing between them")
    return floats(sources, params, asked)
