"""Cases of tensors made from constants, widened, shifted, or overwritten in part.

Belongs here: SET, ACC, PAD, ROLL, TRI, DIAG, DIAG_MASK_INF, DIAG_MASK_ZERO, FILL, ARANGE, TIMESTEP_EMBEDDING,
COUNT_EQUAL. Must not be here: anything else.
"""

from __future__ import annotations

from collections.abc import Iterator

from rpc_backend.graph import Tensor, Triangle, build
from rpc_backend.graph.element_types import F16, F32, I32
from rpc_backend.testing.backend_suite.case import Build, Case, case_id, extents
from rpc_backend.testing.backend_suite.leaves import Extents, Layout, Leaves

_LAYOUTS: tuple[Layout, ...] = ("packed", "padded", "permuted", "transposed")


def cases() -> Iterator[Case]:
    """Yield all of them."""
    for op in ("SET", "ACC"):
        yield from _overwrite_cases(op)
    for layout in _LAYOUTS:
        yield from _cases_of_layout(layout)
    yield _exact("PAD", ("both sides",), lambda leaves: build.pad(_some(leaves), (2, 0, 1, 3), (1, 4, 0, 0)))
    yield _exact(
        "PAD", ("circular",), lambda leaves: build.pad(_some(leaves), (2, 0, 1, 0), (1, 3, 0, 0), circular=True)
    )
    for kind in (F32, F16):
        yield _exact("FILL", (kind,), lambda leaves, kind=kind: build.fill(leaves.tensor(kind, (7, 3, 1, 1)), -2.5))
    yield Case(case_id("ARANGE", "0 to 17"), "ARANGE", lambda leaves: build.arange(0.0, 17.0, 1.0))
    yield Case(case_id("ARANGE", "fractions"), "ARANGE", lambda leaves: build.arange(-1.5, 2.1, 0.25))
    for dim in (6, 7, 64):
        yield Case(
            case_id("TIMESTEP_EMBEDDING", f"dim{dim}"), "TIMESTEP_EMBEDDING",
            lambda leaves, dim=dim: build.timestep_embedding(leaves.tensor(F32, (5, 1, 1, 1), between=(0, 999)), dim),
        )  # fmt: skip
    for ne in ((40, 5, 1, 1), (40, 5, 2, 1)):
        yield _exact("COUNT_EQUAL", ("I32", extents(*ne)), lambda leaves, ne=ne: _count_equal(leaves, ne))


def _exact(op: str, parts: tuple[object, ...], make: Build) -> Case:
    return Case(case_id(op, *parts), op, make, measure="exact", tolerance=0.0)


def _some(leaves: Leaves, layout: Layout = "packed") -> Tensor:
    return leaves.tensor(F32, (9, 5, 4, 2), layout)


def _overwrite_cases(op: str) -> Iterator[Case]:
    windows = {"all": ((9, 5, 4, 2), 0), "rows": ((9, 2, 1, 1), 36), "a block": ((3, 2, 2, 1), 8)}
    for name, (ne, offset) in windows.items():
        for layout in ("packed", "permuted"):

            def make(leaves: Leaves, ne=ne, offset: int = offset, layout: Layout = layout) -> Tensor:
                target = _some(leaves)
                return build.overwrite(
                    target, leaves.tensor(F32, ne, layout), target.nb[1:], offset, add=op == "ACC"
                )  # fmt: skip

            yield _exact(op, (name, layout), make)


def _cases_of_layout(layout: Layout) -> Iterator[Case]:
    yield _exact("PAD", (layout,), lambda leaves: build.pad(_some(leaves, layout), (3, 2, 0, 1)))
    yield _exact("ROLL", (layout,), lambda leaves: build.roll(_some(leaves, layout), (2, -1, 3, 0)))
    yield _exact("DIAG", (layout,), lambda leaves: build.diag(leaves.tensor(F32, (17, 1, 3, 2), layout)))
    for triangle in Triangle:
        yield _exact(
            "TRI", (triangle.name.lower(), layout),
            lambda leaves, triangle=triangle: build.tri(leaves.tensor(F32, (19, 19, 3, 1), layout), triangle),
        )  # fmt: skip
    for n_past in (0, 3):
        for zero in (False, True):
            yield _exact(
                "DIAG_MASK_ZERO" if zero else "DIAG_MASK_INF", (n_past, layout),
                lambda leaves, n_past=n_past, zero=zero: build.diag_mask(_some(leaves, layout), n_past, zero=zero),
            )  # fmt: skip


def _count_equal(leaves: Leaves, ne: Extents) -> Tensor:
    a, b = (leaves.tensor(I32, ne, between=(0, 3)) for _ in range(2))
    return build.count_equal(a, b)
