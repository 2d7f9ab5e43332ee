"""Constructors: one function per operation, and the views.

Belongs here: what a model author calls to make tensors. Must not be here: placing or running them.

Every function raises GraphError when the sources break the operation's shape rule.

Source: each mirrors the ggml constructor of the same name (`add` is `ggml_add`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rpc_backend.errors import GraphError
from rpc_backend.graph.element_types import ElementType
from rpc_backend.graph.ops import OPS, Glu, RopeMode, Shape, Triangle, Unary
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


def cont(a: Tensor, ne: Sequence[int] | None = None) -> Tensor:
    """A packed copy of `a`, with other extents if given."""
    return build("CONT", [a], asked=None if ne is None else Shape(a.type, Tensor(a.type, ne).ne))


def cast(a: Tensor, type: ElementType) -> Tensor:
    """A packed copy of `a` in another element type."""
    return build("CPY", [a], asked=Shape(type, a.ne))


def add(a: Tensor, b: Tensor) -> Tensor:
    return build("ADD", [a, b])


def sub(a: Tensor, b: Tensor) -> Tensor:
    return build("SUB", [a, b])


def mul(a: Tensor, b: Tensor) -> Tensor:
    return build("MUL", [a, b])


def div(a: Tensor, b: Tensor) -> Tensor:
    return build("DIV", [a, b])


def add_id(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    return build("ADD_ID", [a, b, ids])


def add1(a: Tensor, b: Tensor) -> Tensor:
    return build("ADD1", [a, b])


def sqr(a: Tensor) -> Tensor:
    return build("SQR", [a])


def sqrt(a: Tensor) -> Tensor:
    return build("SQRT", [a])


def sin(a: Tensor) -> Tensor:
    return build("SIN", [a])


def cos(a: Tensor) -> Tensor:
    return build("COS", [a])


def leaky_relu(a: Tensor, slope: float) -> Tensor:
    return build("LEAKY_RELU", [a], {"slope": slope})


def sum_all(a: Tensor) -> Tensor:
    return build("SUM", [a])


def mean(a: Tensor) -> Tensor:
    return build("MEAN", [a])


def count_equal(a: Tensor, b: Tensor) -> Tensor:
    return build("COUNT_EQUAL", [a, b])


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


def norm(a: Tensor, eps: float) -> Tensor:
    return build("NORM", [a], {"eps": eps})


def l2_norm(a: Tensor, eps: float) -> Tensor:
    return build("L2_NORM", [a], {"eps": eps})


def group_norm(a: Tensor, n_groups: int, eps: float) -> Tensor:
    return build("GROUP_NORM", [a], {"n_groups": n_groups, "eps": eps})


def mul_mat(a: Tensor, b: Tensor) -> Tensor:
    return build("MUL_MAT", [a, b])


def mul_mat_id(experts: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    return build("MUL_MAT_ID", [experts, b, ids])


def out_prod(a: Tensor, b: Tensor) -> Tensor:
    return build("OUT_PROD", [a, b])


def get_rows(a: Tensor, rows: Tensor) -> Tensor:
    return build("GET_ROWS", [a, rows])


def unary(function: Unary, a: Tensor, **params: float) -> Tensor:
    """`params` are those of XIELU: alpha_n, alpha_p, beta, eps."""
    return build("UNARY", [a], {"function": int(function), **params})


def glu(
    function: Glu,
    a: Tensor,
    b: Tensor | None = None,
    *,
    swapped: bool = False,
    alpha: float = 0.0,
    limit: float = 0.0,
) -> Tensor:
    sources = [a] if b is None else [a, b]
    params = {"function": int(function), "swapped": int(swapped), "alpha": alpha, "limit": limit}
    return build("GLU", sources, params)


def soft_max(
    a: Tensor,
    mask: Tensor | None = None,
    scale: float = 1.0,
    max_bias: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    sources = _without_gap([a, mask, sinks])
    return build("SOFT_MAX", sources, {"scale": scale, "max_bias": max_bias})


def flash_attn_ext(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    max_bias: float = 0.0,
    logit_softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    sources = _without_gap([q, k, v, mask, sinks])
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
    sections: tuple[int, int, int, int] = (0, 0, 0, 0),
    n_offset: int = 0,
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
        "n_offset": n_offset,
        **{f"section{index}": count for index, count in enumerate(sections)},
    }
    return build("ROPE", sources, params)


def pad(a: Tensor, after: Extents, before: Extents = (0, 0, 0, 0), *, circular: bool = False) -> Tensor:
    params: dict[str, int | float] = {"circular": int(circular)}
    params |= {f"before{axis}": count for axis, count in enumerate(before)}
    params |= {f"after{axis}": count for axis, count in enumerate(after)}
    return build("PAD", [a], params)


def roll(a: Tensor, shifts: Extents) -> Tensor:
    return build("ROLL", [a], {f"shift{axis}": shift for axis, shift in enumerate(shifts)})


def tri(a: Tensor, triangle: Triangle) -> Tensor:
    return build("TRI", [a], {"triangle": int(triangle)})


def diag(a: Tensor) -> Tensor:
    return build("DIAG", [a])


def diag_mask(a: Tensor, n_past: int, *, zero: bool = False) -> Tensor:
    return build("DIAG_MASK_ZERO" if zero else "DIAG_MASK_INF", [a], {"n_past": n_past})


def fill(a: Tensor, value: float) -> Tensor:
    return build("FILL", [a], {"value": value})


def arange(start: float, stop: float, step: float) -> Tensor:
    return build("ARANGE", [], {"start": start, "stop": stop, "step": step})


def timestep_embedding(timesteps: Tensor, dim: int, max_period: int = 10000) -> Tensor:
    return build("TIMESTEP_EMBEDDING", [timesteps], {"dim": dim, "max_period": max_period})


def overwrite(a: Tensor, b: Tensor, nb: tuple[int, int, int], offset_bytes: int, *, add: bool = False) -> Tensor:
    """A copy of `a` with `b` written over, or added to, a window of strides `nb` inside it (SET, ACC)."""
    params: dict[str, int | float] = {"nb1": nb[0], "nb2": nb[1], "nb3": nb[2], "offset": offset_bytes}
    return build("ACC" if add else "SET", [a, b], params)


def ssm_conv(x: Tensor, kernel: Tensor) -> Tensor:
    return build("SSM_CONV", [x, kernel])


def gated_delta_net(
    q: Tensor, k: Tensor, v: Tensor, gate: Tensor, beta: Tensor, state: Tensor, snapshots: int = 1
) -> Tensor:
    return build("GATED_DELTA_NET", [q, k, v, gate, beta, state], {"snapshots": snapshots})


def gated_linear_attn(k: Tensor, v: Tensor, q: Tensor, gate: Tensor, state: Tensor, factor: float) -> Tensor:
    return build("GATED_LINEAR_ATTN", [k, v, q, gate, state], {"scale": factor})


def ssm_scan(
    states: Tensor, x: Tensor, step: Tensor, decay: Tensor, b: Tensor, c: Tensor, ids: Tensor, snapshots: int = 1
) -> Tensor:
    return build("SSM_SCAN", [states, x, step, decay, b, c, ids], {"snapshots": snapshots})


def rwkv_wkv6(k: Tensor, v: Tensor, r: Tensor, first: Tensor, decay: Tensor, state: Tensor) -> Tensor:
    return build("RWKV_WKV6", [k, v, r, first, decay, state])


def rwkv_wkv7(r: Tensor, decay: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor) -> Tensor:
    return build("RWKV_WKV7", [r, decay, k, v, a, b, state])


def solve_tri(a: Tensor, b: Tensor) -> Tensor:
    return build("SOLVE_TRI", [a, b])


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


def _without_gap(sources: Sequence[Tensor | None]) -> list[Tensor]:
    """Drop what is left out at the end; raise GraphError if something behind it is given."""
    given = [source for source in sources if source is not None]
    if any(source is None for source in sources[: len(given)]):
        raise GraphError("sinks need a mask")
    return given


def _view(a: Tensor, op_name: str, ne: Sequence[int], nb: Sequence[int], offset_bytes: int) -> Tensor:
    root, base = (a, 0) if a.view_src is None else (a.view_src, a.view_offs)
    return Tensor(a.type, ne, nb=nb, op=OPS[op_name], sources=[a], view_src=root, view_offs=base + offset_bytes)


def _over(target: Tensor, op_name: str, sources: Sequence[Tensor]) -> Tensor:
    OPS[op_name].rule(tuple(sources), {}, None)
    result = _view(target, op_name, target.ne, target.nb, 0)
    result.sources = tuple(sources)
    return result
