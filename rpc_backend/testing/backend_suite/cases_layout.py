"""Cases of copies, conversions and views.

Belongs here: CPY, DUP, CONT, CONCAT, REPEAT, RESHAPE, VIEW, PERMUTE, TRANSPOSE. Must not be here: anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rpc_backend.graph import ELEMENT_TYPES, ElementType, Tensor, build
from rpc_backend.graph.element_types import BF16, F16, F32, I32, QUANTIZED, element_type
from rpc_backend.testing.backend_suite.case import Build, Case, case_id, extents
from rpc_backend.testing.backend_suite.leaves import Extents, Layout, Leaves

_FLOATS = (F32, F16, BF16)
_LAYOUTS: tuple[Layout, ...] = ("padded", "sliced", "permuted", "transposed", "rolled")
_BLOCK_LAYOUTS: tuple[Layout, ...] = ("padded", "sliced", "permuted")
_JOIN_LAYOUTS: tuple[tuple[int, Layout], ...] = ((0, "permuted"), (2, "permuted"), (1, "padded"), (2, "transposed"))
_ODD_STEPS = {"Q4_0": 1e-3, "Q4_1": 1e-3, "Q5_0": 3e-4, "Q5_1": 3e-4, "Q8_0": 5e-6}
"""Tolerances of conversions to blocks: about one element in fifty may be rounded to the neighbouring step."""


def cases() -> Iterator[Case]:
    """Yield all of them."""
    yield from _conversions()
    yield from _copies()
    yield from _packing()
    yield from _joins()
    yield from _views()


def _exact(op: str, parts: tuple[object, ...], make: Build) -> Case:
    return Case(case_id(op, *parts), op, make, measure="exact", tolerance=0.0)


def _conversions() -> Iterator[Case]:
    for source in _FLOATS:
        for target in _FLOATS:
            yield _conversion(source, target)
        for name, tolerance in _ODD_STEPS.items():
            yield _conversion(source, element_type(name), tolerance)
    for kind in sorted(QUANTIZED, key=lambda kind: kind.code):
        yield _conversion(kind, F32, 1e-12)
    yield _conversion(F32, I32)
    yield _conversion(I32, F32)
    yield _exact("CPY", ("F32", "F16", "infinities and NaN"), lambda leaves: _specials(leaves, F16))
    yield _exact("CPY", ("F32", "BF16", "infinities and NaN"), lambda leaves: _specials(leaves, BF16))


def _conversion(source: ElementType, target: ElementType, tolerance: float = 0.0) -> Case:
    block = max(source.block_size, target.block_size, 33)
    ne: Extents = (2 * block if block > 33 else block * 32, 5, 3, 1)

    def make(leaves: Leaves) -> Tensor:
        between = (-1000.0, 1000.0) if target is I32 else None
        return build.cpy(leaves.tensor(source, ne, between=between), leaves.tensor(target, ne))

    name = case_id("CPY", source, target, extents(*ne))
    return Case(name, "CPY", make, measure="nmse" if tolerance else "exact", tolerance=tolerance)


def _specials(leaves: Leaves, target: ElementType) -> Tensor:
    values = np.array(
        [np.inf, -np.inf, np.nan, 0.0, -0.0, 65504.0, 65519.9, 65520.0, 1e-7, 6e-8, 3.39e38, 1.00390625, 1.01171875]
    )
    ne = (len(values), 1, 1, 1)
    return build.cpy(leaves.constant(F32, ne, values), leaves.tensor(target, ne))


def _copies() -> Iterator[Case]:
    for layout in _LAYOUTS:
        yield _copy(F32, F32, layout, "packed")
        yield _copy(F32, F16, layout, "packed")
        yield _copy(F16, F16, layout, "packed")
        yield _copy(F16, F32, layout, "padded")
        yield _copy(F32, F32, "packed", layout)
        yield _copy(F32, F16, "packed", layout)
    for layout in ("padded", "permuted", "transposed"):
        yield _copy(I32, I32, layout, "sliced")
        yield _copy(BF16, BF16, layout, "sliced")
    for layout in _BLOCK_LAYOUTS:
        yield _copy(element_type("Q8_0"), F32, layout, "packed")
        yield _copy(element_type("Q4_K"), F32, layout, "packed")
        yield _copy(F32, element_type("Q8_0"), "packed", layout)
        yield _copy(F32, element_type("Q4_0"), "permuted", layout)
    for kind in ELEMENT_TYPES.values():
        yield _copy(kind, kind, "packed", "padded")
    for kind in (F32, F16, element_type("Q8_0")):
        yield _reshaping_copy(kind)
    for source, target in ((F32, F16), (F16, F32), (I32, F32), (F32, element_type("Q8_0"))):
        yield _cast(source, target, "packed")
    yield _cast(F32, F16, "permuted")


def _copy(source: ElementType, target: ElementType, source_layout: Layout, target_layout: Layout) -> Case:
    ne: Extents = (512 if max(source.block_size, target.block_size) > 1 else 35, 6, 4, 2)

    def make(leaves: Leaves) -> Tensor:
        a, b = leaves.tensor(source, ne, source_layout), leaves.tensor(target, ne, target_layout)
        return build.cpy(a, b)

    parts = (source, source_layout, target, target_layout, extents(*ne))
    if source is target or not (source.is_quantized or target.is_quantized):
        return _exact("CPY", parts, make)
    return Case(case_id("CPY", *parts), "CPY", make, tolerance=_ODD_STEPS.get(target.name, 1e-12))


def _reshaping_copy(kind: ElementType) -> Case:
    def make(leaves: Leaves) -> Tensor:
        source = leaves.tensor(kind, (64, 6, 4, 1), "permuted")
        return build.cpy(source, leaves.tensor(kind, (128, 3, 2, 2)))

    return _exact("CPY", (kind, "64x6x4", "permuted", "128x3x2x2"), make)


def _cast(source: ElementType, target: ElementType, layout: Layout) -> Case:
    """A copy that is written nowhere else."""

    def make(leaves: Leaves) -> Tensor:
        return build.cast(leaves.tensor(source, (64, 6, 4, 1), layout), target)

    tolerance = _ODD_STEPS.get(target.name, 0.0)
    name = case_id("CPY", source, target, "new", layout)
    return Case(name, "CPY", make, measure="nmse" if tolerance else "exact", tolerance=tolerance)


def _packing() -> Iterator[Case]:
    for kind in (F32, F16, element_type("Q8_0")):
        for layout in ("packed", "permuted"):
            yield _exact(
                "CONT", (kind, "64x6x4", layout, "to 128x12"),
                lambda leaves, kind=kind, layout=layout: build.cont(
                    leaves.tensor(kind, (64, 6, 4, 1), layout), (128, 12)
                ),
            )  # fmt: skip
    for op, constructor in (("CONT", build.cont), ("DUP", build.dup)):
        for kind in (F32, F16, BF16, I32):
            for layout in ("packed", *_LAYOUTS):
                yield _packed_copy(op, constructor, kind, (35, 6, 4, 2), layout)
        for name in ("Q8_0", "Q4_0", "Q6_K"):
            for layout in _BLOCK_LAYOUTS:
                yield _packed_copy(op, constructor, element_type(name), (512, 6, 4, 2), layout)


def _packed_copy(
    op: str, constructor: Callable[[Tensor], Tensor], kind: ElementType, ne: Extents, layout: Layout
) -> Case:
    return _exact(op, (kind, extents(*ne), layout), lambda leaves: constructor(leaves.tensor(kind, ne, layout)))


def _joins() -> Iterator[Case]:
    for kind in (F32, F16, I32):
        for dim in range(4):
            yield _concat(kind, dim, "packed")
    for dim, layout in _JOIN_LAYOUTS:
        yield _concat(F32, dim, layout)
    for kind in (F32, F16, I32):
        yield _repeat(kind, "packed", (3, 2, 2, 3))
    for layout in ("padded", "permuted", "transposed"):
        yield _repeat(F32, layout, (2, 1, 3, 1))
    yield _repeat(F32, "packed", (1, 1, 1, 1))


def _concat(kind: ElementType, dim: int, layout: Layout) -> Case:
    def make(leaves: Leaves) -> Tensor:
        ne = [19, 5, 3, 2]
        a = leaves.tensor(kind, (ne[0], ne[1], ne[2], ne[3]), layout)
        ne[dim] += 4
        return build.concat(a, leaves.tensor(kind, (ne[0], ne[1], ne[2], ne[3]), layout), dim)

    return _exact("CONCAT", (kind, "19x5x3x2", f"dim{dim}", layout), make)


def _repeat(kind: ElementType, layout: Layout, times: Extents) -> Case:
    ne: Extents = (19, 5, 3, 2)

    def make(leaves: Leaves) -> Tensor:
        want = tuple(extent * count for extent, count in zip(ne, times, strict=True))
        return build.repeat(leaves.tensor(kind, ne, layout), (want[0], want[1], want[2], want[3]))

    return _exact("REPEAT", (kind, extents(*ne), layout, "times", extents(*times)), make)


def _views() -> Iterator[Case]:
    """Views of inputs and of results, read as they are and through an operation."""
    for kind in (F32, F16, I32):
        for op, make in _VIEWS.items():
            yield _exact(op, (kind, "of an input"), _on_input(kind, make))
    for op, make in _VIEWS.items():
        yield _exact(op, ("F32", "of a result"), _on_result(make, packed=False))
        yield _exact(op, ("F32", "of a result", "packed"), _on_result(make, packed=True))


_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "RESHAPE": lambda a: build.reshape(a, (12, 3, 10, 4)),
    "VIEW": lambda a: build.view(a, (7, 3, 2, 2), a.nb, 2 * a.nb[1] + 3 * a.nb[0]),
    "PERMUTE": lambda a: build.permute(a, 1, 3, 0, 2),
    "TRANSPOSE": build.transpose,
}


def _on_input(kind: ElementType, make: Callable[[Tensor], Tensor]) -> Build:
    return lambda leaves: make(leaves.tensor(kind, (12, 10, 6, 2)))


def _on_result(make: Callable[[Tensor], Tensor], *, packed: bool) -> Build:
    def build_case(leaves: Leaves) -> Tensor:
        result = make(build.unary(build.Unary.NEG, leaves.tensor(F32, (12, 10, 6, 2))))
        return build.cont(result) if packed else result

    return build_case
