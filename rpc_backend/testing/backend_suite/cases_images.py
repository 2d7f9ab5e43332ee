"""Cases of images, sounds and other grids.

Belongs here: IM2COL, IM2COL_3D, COL2IM_1D, CONV_*, POOL_*, UPSCALE, PAD_REFLECT_1D, WIN_PART, WIN_UNPART, GET_REL_POS,
ADD_REL_POS. Must not be here: anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from rpc_backend.graph import ElementType, Interpolation, Pool, Tensor
from rpc_backend.graph import build_images as build
from rpc_backend.graph.element_types import BF16, F16, F32
from rpc_backend.testing.backend_suite.case import Build, Case, case_id, extents
from rpc_backend.testing.backend_suite.leaves import Extents, Layout, Leaves

_FORMS = (((1, 1), (0, 0), (1, 1)), ((2, 1), (1, 2), (1, 1)), ((1, 3), (2, 0), (2, 1)), ((5, 4), (6, 7), (3, 2)))
"""Strides, paddings and dilations."""


def cases() -> Iterator[Case]:
    """Yield all of them."""
    for form in _FORMS:
        yield from _patches(form)
        yield from _convolutions(form)
    yield from _spread()
    yield from _pools()
    yield from _resampled()
    yield from _windows()
    for layout in ("padded", "permuted", "transposed"):
        yield from _cases_of_layout(layout)


def _cases_of_layout(layout: Layout) -> Iterator[Case]:
    """Yield cases whose grid does not lie packed."""
    kernels, form = (3, 2, 4, 5), ((2, 1), (1, 2), (1, 1))
    makers: dict[str, Callable[[Leaves, Tensor], Tensor]] = {
        "IM2COL": lambda leaves, grid: build.im2col(leaves.weight(F32, kernels), grid, *form),
        "CONV_2D": lambda leaves, grid: build.conv_2d(leaves.weight(F32, kernels), grid, *form),
        "CONV_2D_DW": lambda leaves, grid: build.conv_2d(leaves.weight(F32, (3, 2, 1, 4)), grid, *form, depthwise=True),
        "CONV_TRANSPOSE_2D": lambda leaves, grid: build.conv_transpose_2d(leaves.weight(F32, (3, 2, 5, 4)), grid, 2),
        "POOL_1D": lambda leaves, grid: build.pool(grid, Pool.MEAN, (3,), (2,), (1,)),
        "POOL_2D": lambda leaves, grid: build.pool(grid, Pool.MAX, (3, 2), (2, 2), (1, 1)),
        "UPSCALE": lambda leaves, grid: build.upscale(grid, (26, 4, 4, 2), Interpolation.BILINEAR),
        "PAD_REFLECT_1D": lambda leaves, grid: build.pad_reflect_1d(grid, 3, 2),
    }
    for op, make in makers.items():
        yield _case(op, lambda leaves, make=make: make(leaves, leaves.tensor(F32, (13, 9, 4, 2), layout)), layout)
    yield _case("WIN_PART", lambda leaves: build.win_part(leaves.tensor(F32, (6, 9, 8, 1), layout), 4), layout)


def _case(op: str, make: Build, *parts: object, exact: bool = False) -> Case:
    if exact:
        return Case(case_id(op, *parts), op, make, measure="exact", tolerance=0.0)
    return Case(case_id(op, *parts), op, make)


def _text(form: tuple[tuple[int, ...], ...]) -> str:
    return ",".join(f"{name}{value[0]}:{value[1]}" for name, value in zip("spd", form, strict=True))


def _third(form: tuple[tuple[int, int], ...]) -> list[tuple[int, int, int]]:
    return [(*values, values[0]) for values in form]


def _patches(form: tuple[tuple[int, int], ...]) -> Iterator[Case]:
    one = [values[:1] for values in form]
    for target, source in ((F32, F32), (F16, F32), (F16, F16)):
        name = f"{source} to {target}"

        def flat(leaves: Leaves, target: ElementType = target, source: ElementType = source) -> Tensor:
            kernel = leaves.weight(F16, (3, 4, 1, 1))
            return build.im2col(kernel, leaves.tensor(source, (17, 4, 2, 1)), one[0], one[1], one[2], target)

        def wide(leaves: Leaves, target: ElementType = target, source: ElementType = source) -> Tensor:
            kernel = leaves.weight(F16, (3, 2, 4, 1))
            return build.im2col(kernel, leaves.tensor(source, (13, 9, 4, 2)), form[0], form[1], form[2], target)

        yield _case("IM2COL", flat, "one axis", name, _text(form))
        yield _case("IM2COL", wide, "two axes", name, _text(form))

    def deep(leaves: Leaves) -> Tensor:
        kernel = leaves.weight(F32, (3, 2, 2, 6))
        stride, padding, dilation = _third(form)
        return build.im2col_3d(kernel, leaves.tensor(F32, (9, 7, 11, 6)), 3, stride, padding, dilation)

    yield _case("IM2COL_3D", deep, _text(form))


def _convolutions(form: tuple[tuple[int, int], ...]) -> Iterator[Case]:
    for kind in (F32, F16):

        def wide(leaves: Leaves, kind: ElementType = kind) -> Tensor:
            return build.conv_2d(leaves.weight(kind, (3, 2, 4, 5)), leaves.tensor(F32, (13, 9, 4, 2)), *form)

        def by_channel(leaves: Leaves, kind: ElementType = kind) -> Tensor:
            kernels = leaves.weight(kind, (3, 2, 1, 4))
            return build.conv_2d(kernels, leaves.tensor(F32, (13, 9, 4, 2)), *form, depthwise=True)

        def deep(leaves: Leaves, kind: ElementType = kind) -> Tensor:
            kernels = leaves.weight(kind, (3, 2, 2, 15))
            return build.conv_3d(kernels, leaves.tensor(F32, (9, 7, 11, 6)), 3, *_third(form))

        yield _case("CONV_2D", wide, kind, _text(form))
        yield _case("CONV_2D_DW", by_channel, kind, _text(form))
        yield _case("CONV_3D", deep, kind, _text(form))


def _spread() -> Iterator[Case]:
    for kind, stride in product((F32, F16), (1, 2, 5)):

        def flat(leaves: Leaves, kind: ElementType = kind, stride: int = stride) -> Tensor:
            return build.conv_transpose_1d(leaves.weight(kind, (3, 5, 4, 1)), leaves.tensor(F32, (7, 4, 1, 1)), stride)

        def wide(leaves: Leaves, kind: ElementType = kind, stride: int = stride) -> Tensor:
            kernels = leaves.weight(kind, (3, 2, 5, 4))
            return build.conv_transpose_2d(kernels, leaves.tensor(F32, (7, 6, 4, 2)), stride)

        yield _case("CONV_TRANSPOSE_1D", flat, kind, f"s{stride}")
        yield _case("CONV_TRANSPOSE_2D", wide, kind, f"s{stride}")
    for kind, stride, padding in product((F32, F16, BF16), (1, 3, 7), (0, 2)):

        def columns(leaves: Leaves, kind: ElementType = kind, stride: int = stride, padding: int = padding) -> Tensor:
            return build.col2im_1d(leaves.tensor(kind, (5 * 4, 6, 1, 1)), stride, 5, padding)

        yield _case("COL2IM_1D", columns, kind, f"s{stride}", f"p{padding}")


def _pools() -> Iterator[Case]:
    for pool, kind in product(Pool, (F32, F16)):
        for size, stride, padding in (((3, 2), (1, 1), (0, 0)), ((2, 3), (2, 3), (1, 1)), ((4, 4), (3, 5), (3, 2))):
            for n_axes in (1, 2):

                def make(
                    leaves: Leaves, pool: Pool = pool, kind: ElementType = kind, size=size[:n_axes],
                    stride=stride[:n_axes], padding=padding[:n_axes],
                ) -> Tensor:  # fmt: skip
                    return build.pool(leaves.tensor(kind, (13, 9, 3, 2)), pool, size, stride, padding)

                yield _case(f"POOL_{n_axes}D", make, pool.name, kind, _text((stride, padding, size)))


def _resampled() -> Iterator[Case]:
    sizes: tuple[Extents, ...] = (
        (14, 10, 3, 2),
        (21, 13, 6, 2),
        (3, 2, 3, 4),
        (7, 5, 3, 2),
        (1, 1, 3, 2),
        (11, 3, 3, 2),
    )
    for kind, corners, ne in product(Interpolation, (False, True), sizes):
        for smooth in (False, True) if kind is Interpolation.BILINEAR else (False,):

            def make(
                leaves: Leaves, kind: Interpolation = kind, corners: bool = corners, ne: Extents = ne,
                smooth: bool = smooth,
            ) -> Tensor:  # fmt: skip
                return build.upscale(leaves.tensor(F32, (7, 5, 3, 2)), ne, kind, corners=corners, smooth=smooth)

            flags = ("corners" * corners, "smooth" * smooth)
            yield _case("UPSCALE", make, kind.name, *flags, extents(*ne), exact=kind is Interpolation.NEAREST)
    for before, after in ((0, 0), (3, 5), (8, 8)):
        yield _case(
            "PAD_REFLECT_1D",
            lambda leaves, before=before, after=after: build.pad_reflect_1d(
                leaves.tensor(F32, (9, 5, 2, 2)), before, after
            ),
            before, after, exact=True,
        )  # fmt: skip


def _windows() -> Iterator[Case]:
    for n0, n1, w in ((8, 8, 4), (9, 6, 4), (3, 2, 5), (14, 14, 1)):
        count = -(-n0 // w) * -(-n1 // w)
        yield _case(
            "WIN_PART", lambda leaves, n0=n0, n1=n1, w=w: build.win_part(leaves.tensor(F32, (6, n0, n1, 1)), w),
            extents(6, n0, n1), w, exact=True,
        )  # fmt: skip
        yield _case(
            "WIN_UNPART",
            lambda leaves, n0=n0, n1=n1, w=w, count=count: build.win_unpart(
                leaves.tensor(F32, (6, w, w, count)), n0, n1
            ),
            extents(6, n0, n1), w, exact=True,
        )  # fmt: skip
    for n in (1, 4, 14):
        yield _case(
            "GET_REL_POS", lambda leaves, n=n: build.get_rel_pos(leaves.tensor(F16, (8, 2 * n - 1, 1, 1))), n,
            exact=True,
        )  # fmt: skip
    for n, rows, batch in ((3, 3, 2), (4, 5, 3)):

        def add(leaves: Leaves, n: int = n, rows: int = rows, batch: int = batch) -> Tensor:
            w, h = (leaves.tensor(F32, (n, rows, 2, batch)) for _ in range(2))
            return build.add_rel_pos(leaves.tensor(F32, (n * n, rows * 2, batch, 1)), w, h)

        yield _case("ADD_REL_POS", add, n, rows, batch)
