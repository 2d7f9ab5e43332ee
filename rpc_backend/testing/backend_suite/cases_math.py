"""Cases of arithmetic: two sources, element-wise functions, gated units, rows.

Belongs here: ADD, ADD1, SUB, MUL, DIV, SCALE, CLAMP, LEAKY_RELU, LOG, SQR, SQRT, SIN, COS, UNARY, GLU, and the norms
and sums of rows and wholes. Must not be here: anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rpc_backend.graph import ElementType, Glu, Tensor, Unary, build
from rpc_backend.graph.element_types import BF16, F16, F32
from rpc_backend.testing.backend_suite.case import Case, case_id, extents
from rpc_backend.testing.backend_suite.leaves import Extents, Layout, Leaves

_FLOATS = (F32, F16, BF16)
_BINARY = {"ADD": build.add, "SUB": build.sub, "MUL": build.mul, "DIV": build.div}
_ROW_OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "SUM_ROWS": build.sum_rows,
    "MEAN": build.mean,
    "SUM": build.sum_all,
    "CUMSUM": build.cumsum,
    "NORM": lambda a: build.norm(a, 1e-5),
    "L2_NORM": lambda a: build.l2_norm(a, 1e-6),
    "RMS_NORM": lambda a: build.rms_norm(a, 1e-5),
}
_FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, float]]] = {
    "SQR": (build.sqr, (-5.0, 5.0)),
    "SQRT": (build.sqrt, (0.0, 9.0)),
    "SIN": (build.sin, (-50.0, 50.0)),
    "COS": (build.cos, (-50.0, 50.0)),
    "LEAKY_RELU": (lambda a: build.leaky_relu(a, 0.1), (-5.0, 5.0)),
}
_XIELU = {"alpha_n": 0.8, "alpha_p": 0.9, "beta": 0.5, "eps": -1e-6}
_PAIRS = ((F32, F32), (F16, F16), (F16, F32), (F32, F16), (BF16, BF16), (BF16, F32))
_SHAPE: Extents = (66, 5, 4, 2)
_BROADCASTS: tuple[Extents, ...] = ((66, 1, 1, 1), (1, 1, 1, 1), (66, 5, 1, 1), (1, 5, 4, 2), (33, 1, 2, 1))
_LAYOUTS: tuple[tuple[Layout, Layout], ...] = (
    ("padded", "packed"), ("packed", "padded"), ("permuted", "packed"), ("transposed", "packed"),
    ("packed", "permuted"), ("packed", "transposed"), ("sliced", "sliced"),
)  # fmt: skip
_ROW_LENGTHS = (1, 3, 32, 33, 288, 576)
_SPECIAL = np.array([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e38, -1e-38])
_EXTREMES = np.array([-1e4, -105.0, -88.0, -20.0, -6.0, -3.0, -1e-6, 0.0, 1e-6, 3.0, 6.0, 20.0, 88.0, 105.0, 1e4])


def cases() -> Iterator[Case]:
    """Yield all of them."""
    for op in _BINARY:
        yield from _binary_cases(op)
    yield from _scale_cases()
    yield from _clamp_cases()
    yield from _log_cases()
    yield from _function_cases()
    yield from _add1_cases()
    yield from _unary_cases()
    yield from _glu_cases()
    for op in _ROW_OPS:
        yield from _row_cases(op)
    yield from _group_norm_cases()
    yield _cumsum_of_counts()


def _binary_cases(op: str) -> Iterator[Case]:
    for a_kind, b_kind in _PAIRS:
        yield _binary(op, a_kind, b_kind, _SHAPE)
        yield _binary(op, a_kind, b_kind, _BROADCASTS[0])
    for ne in _BROADCASTS[1:]:
        yield _binary(op, F32, F32, ne)
    for a_layout, b_layout in _LAYOUTS:
        yield _binary(op, F32, F32, _SHAPE, a_layout, b_layout)
    yield _binary(op, F16, F16, _SHAPE, "permuted", "packed")
    special = case_id(op, "F32", "infinities and NaN")
    yield Case(special, op, lambda leaves: _special_binary(op, leaves), "relative")


def _binary(
    op: str, a_kind: ElementType, b_kind: ElementType, ne: Extents, a_layout: Layout = "packed",
    b_layout: Layout = "packed",
) -> Case:  # fmt: skip
    def make(leaves: Leaves) -> Tensor:
        a = leaves.tensor(a_kind, _SHAPE, a_layout)
        b = leaves.tensor(b_kind, ne, b_layout, between=(0.5, 2.0) if op == "DIV" else None)
        return _BINARY[op](a, b)

    return Case(case_id(op, a_kind, extents(*_SHAPE), a_layout, b_kind, extents(*ne), b_layout), op, make)


def _special_binary(op: str, leaves: Leaves) -> Tensor:
    n = len(_SPECIAL)
    a = leaves.constant(F32, (n, n, 1, 1), np.tile(_SPECIAL, n))
    b = leaves.constant(F32, (n, n, 1, 1), np.repeat(_SPECIAL, n))
    return _BINARY[op](a, b)


def _scale_cases() -> Iterator[Case]:
    for kind in _FLOATS:
        yield _scale(kind, "packed", 0.5)
    yield _scale(F32, "packed", 0.0)
    yield _scale(F32, "padded", 0.5)
    yield _scale(F32, "permuted", 0.5)


def _scale(kind: ElementType, layout: Layout, bias: float) -> Case:
    def make(leaves: Leaves) -> Tensor:
        return build.scale(leaves.tensor(kind, (67, 5, 3, 2), layout), 0.37, bias)

    return Case(case_id("SCALE", kind, "67x5x3x2", layout, f"bias{bias:g}"), "SCALE", make)


def _clamp_cases() -> Iterator[Case]:
    for kind in _FLOATS:
        yield _clamp(kind, "packed", -0.5, 0.75)
    yield _clamp(F32, "packed", -1.0, -1.0)
    yield _clamp(F32, "packed", -np.inf, 0.25)
    yield _clamp(F32, "padded", -0.5, 0.75)
    yield _clamp(F32, "permuted", -0.5, 0.75)
    yield Case(
        case_id("CLAMP", "F32", "infinities"), "CLAMP",
        lambda leaves: build.clamp(leaves.constant(F32, (4, 1, 1, 1), np.array([np.inf, -np.inf, 0, 9])), -2.0, 3.0),
        "exact", 0.0,
    )  # fmt: skip


def _clamp(kind: ElementType, layout: Layout, low: float, high: float) -> Case:
    def make(leaves: Leaves) -> Tensor:
        return build.clamp(leaves.tensor(kind, (67, 5, 3, 2), layout), low, high)

    # In half precision a bound that is no such number is rounded.
    tolerance = 0.0 if kind is F32 else 1e-6
    name = case_id("CLAMP", kind, "67x5x3x2", layout, f"{low:g} to {high:g}")
    return Case(name, "CLAMP", make, "nmse" if tolerance else "exact", tolerance)


def _log_cases() -> Iterator[Case]:
    for kind in _FLOATS:
        yield _log(kind, "packed", (0.01, 9.0))
    yield _log(F32, "packed", (0.9, 1.1))
    yield _log(F32, "padded", (1e-30, 1e30))
    yield _log(F32, "transposed", (0.01, 9.0))
    ends = np.array([0.0, 1.0, np.inf, -1.0, np.nan, 1e-38, 3e38])
    yield Case(
        case_id("LOG", "F32", "ends"), "LOG",
        lambda leaves: build.log(leaves.constant(F32, (7, 1, 1, 1), ends, ends[::-1])), "relative", 1e-5,
    )  # fmt: skip


def _log(kind: ElementType, layout: Layout, between: tuple[float, float]) -> Case:
    def make(leaves: Leaves) -> Tensor:
        return build.log(leaves.tensor(kind, (67, 5, 3, 2), layout, between))

    return Case(case_id("LOG", kind, "67x5x3x2", layout, f"{between[0]:g} to {between[1]:g}"), "LOG", make)


def _function_cases() -> Iterator[Case]:
    for op in _FUNCTIONS:
        for kind in _FLOATS:
            yield _function(op, kind, "packed")
        yield _function(op, F32, "padded")
        yield _function(op, F32, "permuted")


def _function(op: str, kind: ElementType, layout: Layout) -> Case:
    constructor, between = _FUNCTIONS[op]

    def make(leaves: Leaves) -> Tensor:
        return constructor(leaves.tensor(kind, (67, 5, 3, 2), layout, between))

    return Case(case_id(op, kind, "67x5x3x2", layout), op, make)


def _add1_cases() -> Iterator[Case]:
    for kind in _FLOATS:
        for layout in ("packed", "permuted"):
            yield Case(
                case_id("ADD1", kind, layout), "ADD1",
                lambda leaves, kind=kind, layout=layout: build.add1(
                    leaves.tensor(kind, (35, 5, 3, 1), layout), leaves.tensor(F32, (1, 1, 1, 1))
                ),
            )  # fmt: skip


def _group_norm_cases() -> Iterator[Case]:
    for channels, n_groups in ((4, 1), (4, 2), (6, 6), (7, 3)):
        yield Case(
            case_id("GROUP_NORM", "F32", f"{channels} channels", f"{n_groups} groups"), "GROUP_NORM",
            lambda leaves, channels=channels, n_groups=n_groups: build.group_norm(
                leaves.tensor(F32, (9, 5, channels, 2)), n_groups, 1e-5
            ),
        )  # fmt: skip


def _unary_cases() -> Iterator[Case]:
    for function in Unary:
        for kind in _FLOATS:
            yield _unary(function, kind, "packed")
        yield _unary(function, F32, "padded")
        yield _unary(function, F32, "transposed")
        yield _extremes(function)


def _unary(function: Unary, kind: ElementType, layout: Layout) -> Case:
    def make(leaves: Leaves) -> Tensor:
        params = _XIELU if function is Unary.XIELU else {}
        return build.unary(function, leaves.tensor(kind, (67, 5, 3, 1), layout, between=(-5.0, 5.0)), **params)

    return Case(case_id("UNARY", function.name.lower(), kind, "67x5x3", layout), "UNARY", make)


def _extremes(function: Unary) -> Case:
    def make(leaves: Leaves) -> Tensor:
        params = _XIELU if function is Unary.XIELU else {}
        return build.unary(function, leaves.constant(F32, (len(_EXTREMES), 1, 1, 1), _EXTREMES), **params)

    return Case(case_id("UNARY", function.name.lower(), "extremes"), "UNARY", make, measure="relative", tolerance=1e-4)


def _glu_cases() -> Iterator[Case]:
    for function in Glu:
        for kind in _FLOATS:
            yield _glu(function, kind, halves=True, swapped=False)
        for halves, swapped in ((True, True), (False, False), (False, True)):
            yield _glu(function, F32, halves=halves, swapped=swapped)
    for layout in ("padded", "permuted"):
        for halves in (True, False):
            yield _glu(Glu.SWIGLU, F32, halves=halves, swapped=False, layout=layout)


def _glu(function: Glu, kind: ElementType, *, halves: bool, swapped: bool, layout: Layout = "packed") -> Case:
    alpha, limit = (1.702, 0.9) if function in (Glu.SWIGLU_OAI, Glu.SWIGLU_CLAMP) else (0.0, 0.0)

    def make(leaves: Leaves) -> Tensor:
        if halves:
            return build.glu(
                function, leaves.tensor(kind, (2 * 45, 6, 2, 1), layout), swapped=swapped, alpha=alpha, limit=limit
            )
        gate, value = (leaves.tensor(kind, (45, 6, 2, 1), layout) for _ in range(2))
        return build.glu(function, gate, value, swapped=swapped, alpha=alpha, limit=limit)

    how = ("halves" if halves else "two", "swapped" if swapped else "", layout)
    return Case(case_id("GLU", function.name.lower(), kind, *how), "GLU", make)


def _row_cases(op: str) -> Iterator[Case]:
    for n in _ROW_LENGTHS:
        yield _row(op, F32, n, "packed")
    for layout in ("padded", "permuted", "sliced", "transposed"):
        yield _row(op, F32, 70, layout)
    if op in ("NORM", "RMS_NORM", "L2_NORM"):
        yield _row(op, F16, 70, "packed")
        yield _row(op, BF16, 70, "packed")


def _row(op: str, kind: ElementType, n: int, layout: Layout) -> Case:
    def make(leaves: Leaves) -> Tensor:
        return _ROW_OPS[op](leaves.tensor(kind, (n, 5, 3, 2), layout))

    return Case(case_id(op, kind, extents(n, 5, 3, 2), layout), op, make)


def _cumsum_of_counts() -> Case:
    """Whole numbers must be exact: places are counted with them."""
    counts = np.random.default_rng(3).integers(-3, 4, 1000 * 4)

    def make(leaves: Leaves) -> Tensor:
        return build.cumsum(leaves.constant(F32, (1000, 4, 1, 1), counts, counts[::-1]))

    return Case(case_id("CUMSUM", "F32", "1000x4", "counts"), "CUMSUM", make, "exact", 0.0)
