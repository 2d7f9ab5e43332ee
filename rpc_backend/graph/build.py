"""Constructors: one function per operation, and the views.

Belongs here: what a model author calls to make tensors. Must not be here: placing or running them.

Every function raises GraphError when the sources break the operation's shape rule.

Source: each mirrors the ggml constructor of the same name (`add` is `ggml_add`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rpc_backend.errors import GraphError
from rpc_backend.graph.element_types import ElementType
from rpc_backend.graph.ops import OPS, Glu, RopeMode, Shape, Unary
from rpc_backend.graph.tensor import Extents, Tensor


def leaf(type: ElementType, ne: Sequence[int], name: str = "") -> Tensor:
    """Return a packed tensor without an operation: an input, a weight, a cache."""
    return Tensor(type, ne, name=name)


def build(
    op_name: str, sources: Sequence[Tensor], params: dict[str, int | float] | None = None, asked: Shape | None = None
) -> Tensor:
    """Return the packed result of an operation; the shape comes from its rule."""
    op = OPS[op_name]
    raw = op.pack_params(params or {})
    shape = op.rule(tuple(sources), op.unpack_params(raw), asked)
    return Tensor(shape.type, shape.ne, op=op, op_params=raw, sources=sources)


def dup(a: Tensor) -> Tensor:
    return build("DUP", [a])


def cont(a: Tensor) -> Tensor:
    """A packed copy of `a`."""
    return build("CONT", [a])


def add(a: Tensor, b: Tensor) -> Tensor:
    return build("ADD", [a, b])


def sub(a: Tensor, b: Tensor) -> Tensor:
    return build("SUB", [a, b])


def mul(a: Tensor, b: Tensor) -> Tensor:
    return build("MUL", [a, b])


def div(a: Tensor, b: Tensor) -> Tensor:
    return build("DIV", [a, b])


def scale(a: Tensor, factor: float, bias: float = 0.0) -> Tensor:
    return build("SCALE", [a], {"scale": factor, "bias": bias})


def sum_rows(a: Tensor) -> Tensor:
    return build("SUM_ROWS", [a])


def cumsum(a: Tensor) -> Tensor:
    return build("CUMSUM", [a])


def log(a: Tensor) -> Tensor:
    return build("LOG", [a])


def clamp(a: Tensor, minimum: float, maximum: float) -> Tensor:
    return build("CLAMP", [a], {"min": minimum, "max": maximum})


def argmax(a: Tensor) -> Tensor:
    return build("ARGMAX", [a])


def argsort(a: Tensor, *, descending: bool = False) -> Tensor:
    return build("ARGSORT", [a], {"order": int(descending)})


def top_k(a: Tensor, k: int) -> Tensor:
    return build("TOP_K", [a], asked=Shape(a.type, (k, *a.ne[1:])))


def repeat(a: Tensor, ne: Extents) -> Tensor:
    return build("REPEAT", [a], asked=Shape(a.type, ne))


def concat(a: Tensor, b: Tensor, dim: int) -> Tensor:
    return build("CONCAT", [a, b], {"dim": dim})


def rms_norm(a: Tensor, eps: float) -> Tensor:
    return build("RMS_NORM", [a], {"eps": eps})


def mul_mat(a: Tensor, b: Tensor) -> Tensor:
    return build("MUL_MAT", [a, b])


def get_rows(a: Tensor, rows: Tensor) -> Tensor:
    return build("GET_ROWS", [a, rows])


def unary(function: Unary, a: Tensor) -> Tensor:
    return build("UNARY", [a], {"function": int(function)})


def glu(function: Glu, a: Tensor, b: Tensor | None = None, *, swapped: bool = False) -> Tensor:
    sources = [a] if b is None else [a, b]
    return build("GLU", sources, {"function": int(function), "swapped": int(swapped)})


def soft_max(a: Tensor, mask: Tensor | None = None, scale: float = 1.0, max_bias: float = 0.0) -> Tensor:
    sources = [a] if mask is None else [a, mask]
    return build("SOFT_MAX", sources, {"scale": scale, "max_bias": max_bias})


def flash_attn_ext(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    max_bias: float = 0.0,
    logit_softcap: float = 0.0,
) -> Tensor:
    sources = [q, k, v] if mask is None else [q, k, v, mask]
    params = {"scale": scale, "max_bias": max_bias, "logit_softcap": logit_softcap}
    return build("FLASH_ATTN_EXT", sources, params)


def rope(
    a: Tensor,
    positions: Tensor,
    factors: Tensor | None = None,
    *,
    n_dims: int,
    mode: RopeMode,
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Tensor:
    sources = [a, positions] if factors is None else [a, positions, factors]
    params: dict[str, int | float] = {
        "n_dims": n_dims,
        "mode": int(mode),
        "n_ctx_orig": n_ctx_orig,
        "freq_base": freq_base,
        "freq_scale": freq_scale,
        "ext_factor": ext_factor,
        "attn_factor": attn_factor,
        "beta_fast": beta_fast,
        "beta_slow": beta_slow,
    }
    return build("ROPE", sources, params)


def cpy(a: Tensor, b: Tensor) -> Tensor:
    """Write `a` over `b`, converting; the result is a view of `b`."""
    return _over(b, "CPY", [a, b])


def set_rows(target: Tensor, values: Tensor, rows: Tensor) -> Tensor:
    """Write the rows of `values` over rows `rows` of `target`; the result is a view of `target`."""
    return _over(target, "SET_ROWS", [values, rows, target])


def reshape(a: Tensor, ne: Sequence[int]) -> Tensor:
    want = Tensor(a.type, ne)
    OPS["RESHAPE"].rule((a,), {}, Shape(a.type, want.ne))
    return _view(a, "RESHAPE", want.ne, want.nb, 0)


def view(a: Tensor, ne: Sequence[int], nb: Sequence[int] | None = None, offset_bytes: int = 0) -> Tensor:
    """A window of extents `ne`, strides `nb` in bytes (packed if left out), `offset_bytes` into `a`.

    Raises:
        GraphError: the window reaches outside `a`.
    """
    want = Tensor(a.type, ne, nb=nb)
    if offset_bytes < 0 or offset_bytes + want.nbytes > a.nbytes:
        raise GraphError(f"a view of {want.nbytes} bytes at {offset_bytes} reaches outside {a} of {a.nbytes} bytes")
    return _view(a, "VIEW", want.ne, want.nb, offset_bytes)


def permute(a: Tensor, axis0: int, axis1: int, axis2: int, axis3: int) -> Tensor:
    """Axis i of `a` becomes axis `axis_i` of the result."""
    params: dict[str, int | float] = {"axis0": axis0, "axis1": axis1, "axis2": axis2, "axis3": axis3}
    shape = OPS["PERMUTE"].rule((a,), params, None)
    nb = [0, 0, 0, 0]
    for source_axis, axis in enumerate((axis0, axis1, axis2, axis3)):
        nb[axis] = a.nb[source_axis]
    result = _view(a, "PERMUTE", shape.ne, nb, 0)
    result.op_params = OPS["PERMUTE"].pack_params(params)
    return result


def transpose(a: Tensor) -> Tensor:
    """Swap the first two axes, as a view."""
    ne, nb = a.ne, a.nb
    return _view(a, "TRANSPOSE", (ne[1], ne[0], ne[2], ne[3]), (nb[1], nb[0], nb[2], nb[3]), 0)


def _view(a: Tensor, op_name: str, ne: Sequence[int], nb: Sequence[int], offset_bytes: int) -> Tensor:
    root, base = (a, 0) if a.view_src is None else (a.view_src, a.view_offs)
    return Tensor(a.type, ne, nb=nb, op=OPS[op_name], sources=[a], view_src=root, view_offs=base + offset_bytes)


def _over(target: Tensor, op_name: str, sources: Sequence[Tensor]) -> Tensor:
    OPS[op_name].rule(tuple(sources), {}, None)
    result = _view(target, op_name, target.ne, target.nb, 0)
    result.sources = tuple(sources)
    return result
