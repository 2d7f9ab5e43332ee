"""One or more typical nodes of each operation, to ask a device what it takes.

Belongs here: small graphs of one node. Must not be here: data, or running anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from rpc_backend.graph import build, build_images
from rpc_backend.graph.element_types import BF16, ELEMENT_TYPES, F16, F32, FLOATS, I32, I64, Q8_0, ElementType
from rpc_backend.graph.ops import OPS, Glu, Interpolation, Pool, RopeMode, Triangle, Unary
from rpc_backend.graph.tensor import Tensor

_MATRICES = tuple(kind for kind in ELEMENT_TYPES.values() if kind in FLOATS or kind.is_quantized)
_WIDTH = 256
"""Elements of a row: whole blocks of every type."""


def examples() -> dict[str, dict[str, Tensor]]:
    """Return for each operation, in the order of the op table, its forms by name."""
    found: dict[str, dict[str, Tensor]] = {name: {} for name in OPS}
    for form, node in _nodes():
        assert node.op is not None, "every example is a node"
        found[node.op.name][form] = node
    return found


def _leaf(*ne: int, kind: ElementType = F32) -> Tensor:
    return build.leaf(kind, ne)


def _nodes() -> Iterator[tuple[str, Tensor]]:
    yield from _element_wise()
    yield from _rows()
    yield from _products()
    yield from _copies()
    yield from _attention()
    yield from _places()
    yield from _states()
    yield from _images()
    yield from _mixes()


def _element_wise() -> Iterator[tuple[str, Tensor]]:
    for kind in (F32, F16, BF16):
        a, b = _leaf(64, 3, kind=kind), _leaf(64)
        for make in (build.add, build.sub, build.mul, build.div):
            yield kind.name, make(a, b)
        for make in (build.sqr, build.sqrt, build.log, build.sin, build.cos):
            yield kind.name, make(a)
        yield kind.name, build.add1(a, _leaf(1))
        yield kind.name, build.scale(a, 2.0, 1.0)
        yield kind.name, build.clamp(a, 0.0, 1.0)
        yield kind.name, build.leaky_relu(a, 0.1)
    for function in Unary:
        yield function.name, build.unary(function, _leaf(64, 3))
    for gate in Glu:
        yield gate.name, build.glu(gate, _leaf(64, 3), _leaf(64, 3))


def _rows() -> Iterator[tuple[str, Tensor]]:
    a = _leaf(64, 3, 2)
    for kind in (F32, F16, BF16):
        wide = _leaf(64, 3, 2, kind=kind)
        for make in (build.norm, build.rms_norm, build.l2_norm):
            yield kind.name, make(wide, 1e-5)
        yield kind.name, build.sum_all(wide)
    for make in (build.sum_rows, build.mean, build.cumsum, build.argsort):
        yield "F32", make(a)
    yield "F32", build.group_norm(a, 2, 1e-5)
    yield "F32", build.argmax(_leaf(64, 3))
    yield "F32", build.top_k(a, 8)
    yield "I32", build.count_equal(_leaf(64, kind=I32), _leaf(64, kind=I32))
    for kind in (*_MATRICES, I32):
        yield kind.name, build.get_rows(_leaf(_WIDTH, 9, kind=kind), _leaf(4, kind=I32))
    for kind in (F32, F16, Q8_0):
        for values in (F32, F16):
            rows = _leaf(4, kind=I64)
            yield f"{values} to {kind}", build.set_rows(_leaf(64, 9, kind=kind), _leaf(64, 4, kind=values), rows)


def _products() -> Iterator[tuple[str, Tensor]]:
    ids = _leaf(2, 3, kind=I32)
    for kind in _MATRICES:
        yield kind.name, build.mul_mat(_leaf(_WIDTH, 16, kind=kind), _leaf(_WIDTH, 3))
        yield kind.name, build.mul_mat_id(_leaf(_WIDTH, 16, 4, kind=kind), _leaf(_WIDTH, 1, 3), ids)
    yield "F32", build.add_id(_leaf(64, 2, 3), _leaf(64, 4), ids)
    yield "F32", build.out_prod(_leaf(8, 4), _leaf(6, 4))


def _copies() -> Iterator[tuple[str, Tensor]]:
    for source, target in ((F32, F32), (F32, F16), (F16, F32), (F32, Q8_0), (Q8_0, F32), (F32, I32), (I32, F32)):
        yield f"{source} to {target}", build.cpy(_leaf(64, 3, kind=source), _leaf(64, 3, kind=target))
        yield f"{source} to new {target}", build.cast(_leaf(64, 3, kind=source), target)
    swapped = build.permute(_leaf(64, 3, 4), 0, 2, 1, 3)
    yield "permuted", build.cont(swapped)
    yield "permuted, other extents", build.cont(swapped, (256, 3))
    yield "permuted", build.dup(swapped)
    yield "F32", build.concat(_leaf(64, 3), _leaf(64, 2), 1)
    yield "F32", build.repeat(_leaf(64, 1), (64, 3, 1, 1))
    yield "F32", build.reshape(_leaf(64, 3), (32, 6))
    yield "F32", build.view(_leaf(64, 3), (64, 2))
    yield "F32", swapped
    yield "F32", build.transpose(_leaf(64, 3))


def _attention() -> Iterator[tuple[str, Tensor]]:
    scores, mask, sinks = _leaf(40, 5, 6), _leaf(40, 5, kind=F16), _leaf(6)
    yield "plain", build.soft_max(scores)
    yield "mask", build.soft_max(scores, mask)
    yield "sinks", build.soft_max(scores, mask, sinks=sinks)
    for mode in RopeMode:
        n_dims, sections = (32, (8, 8, 8, 8)) if mode is RopeMode.VISION else (64, (11, 11, 10, 0))
        positions = _leaf(20 if mode.has_sections else 5, kind=I32)
        yield mode.name, build.rope(_leaf(64, 6, 5), positions, n_dims=n_dims, mode=mode, sections=sections)
    q = _leaf(64, 5, 6)
    for kind in (F32, F16, BF16, Q8_0):
        k, v = _leaf(64, 40, 2, kind=kind), _leaf(64, 40, 2, kind=kind)
        yield kind.name, build.flash_attn_ext(q, k, v, mask, 0.125)
    k, v = _leaf(64, 40, 2, kind=F16), _leaf(64, 40, 2, kind=F16)
    yield "sinks", build.flash_attn_ext(q, k, v, mask, 0.125, sinks=sinks)


def _places() -> Iterator[tuple[str, Tensor]]:
    square = _leaf(8, 8)
    for add in (False, True):
        yield "F32", build.overwrite(square, _leaf(4, 2), (32, 0, 0), 32, add=add)
    yield "F32", build.pad(square, (1, 0, 0, 0))
    yield "circular", build.pad(square, (1, 0, 0, 0), circular=True)
    yield "F32", build.roll(square, (1, 0, 0, 0))
    yield "F32", build.tri(square, Triangle.LOWER)
    yield "F32", build.diag(_leaf(8))
    yield "F32", build.diag_mask(square, 0)
    yield "F32", build.diag_mask(square, 0, zero=True)
    for kind in (F32, F16):
        yield kind.name, build.fill(_leaf(8, kind=kind), 1.0)
    yield "F32", build.arange(0.0, 8.0, 1.0)
    yield "F32", build.timestep_embedding(_leaf(3), 16)


def _states() -> Iterator[tuple[str, Tensor]]:
    q, one = _leaf(64, 2, 3), _leaf(1, 2, 3)
    yield "F32", build.ssm_conv(_leaf(6, 64), _leaf(4, 64))
    yield "F32", build.gated_delta_net(q, q, q, one, one, _leaf(64, 64, 2))
    yield "gate per row", build.gated_delta_net(q, q, q, q, one, _leaf(64, 64, 2))
    yield "F32", build.gated_linear_attn(q, q, q, q, _leaf(64 * 64 * 2, 1), 0.125)
    x, step, b, ids = _leaf(32, 2, 3), _leaf(2, 3), _leaf(16, 1, 3), _leaf(1, kind=I32)
    yield "one decay per head", build.ssm_scan(_leaf(16, 32, 2, 4), x, step, _leaf(1, 2), b, b, ids)
    yield "decay per element", build.ssm_scan(_leaf(16, 32, 2, 4), x, step, _leaf(16, 2), b, b, ids)
    state = _leaf(64 * 64 * 2, 1)
    yield "F32", build.rwkv_wkv6(q, q, q, _leaf(64, 2), q, state)
    yield "F32", build.rwkv_wkv7(q, q, q, q, q, q, state)
    yield "F32", build.solve_tri(_leaf(8, 8), _leaf(4, 8))


def _images() -> Iterator[tuple[str, Tensor]]:
    picture, sound, space = _leaf(9, 8, 4), _leaf(9, 4), _leaf(9, 8, 7, 4)
    two = (1, 1)
    three = (*two, 1)
    for kind in (F32, F16):
        kernels = _leaf(3, 3, 4, 5, kind=kind)
        yield f"two axes, {kind}", build_images.im2col(kernels, picture, two, two, two, kind)
        yield f"one axis, {kind}", build_images.im2col(_leaf(3, 4, kind=kind), sound, (1,), (1,), (1,), kind)
        yield kind.name, build_images.im2col_3d(_leaf(3, 3, 3, 4), space, 4, three, three, three, kind)
        yield kind.name, build_images.conv_2d(kernels, picture, two, two, two)
        yield kind.name, build_images.conv_2d(_leaf(3, 3, 1, 4, kind=kind), picture, two, two, two, depthwise=True)
        yield kind.name, build_images.conv_3d(_leaf(3, 3, 3, 8, kind=kind), space, 4, three, three, three)
        yield kind.name, build_images.conv_transpose_1d(_leaf(3, 5, 4, kind=kind), sound, 2)
        yield kind.name, build_images.conv_transpose_2d(_leaf(3, 3, 5, 4, kind=kind), picture, 2)
        for pool in Pool:
            yield f"{pool.name}, {kind}", build_images.pool(_leaf(9, 8, kind=kind), pool, (2,), (2,), (0,))
            yield f"{pool.name}, {kind}", build_images.pool(_leaf(9, 8, kind=kind), pool, (2, 2), (2, 2), (0, 0))
    for kind in (F32, F16, BF16):
        yield kind.name, build_images.col2im_1d(_leaf(12, 6, kind=kind), 2, 4)
    for interpolation in Interpolation:
        yield interpolation.name, build_images.upscale(picture, (18, 16, 4, 1), interpolation)
    yield "smoothed", build_images.upscale(picture, (4, 4, 4, 1), Interpolation.BILINEAR, smooth=True)
    yield "F32", build_images.pad_reflect_1d(sound, 2, 2)
    yield "F32", build_images.win_part(picture, 4)
    yield "F32", build_images.win_unpart(_leaf(9, 4, 4, 2), 8, 4)
    yield "F16", build_images.get_rel_pos(_leaf(8, 7, kind=F16))
    yield "F32", build_images.add_rel_pos(_leaf(16, 12), _leaf(4, 4, 3), _leaf(4, 4, 3))


def _mixes() -> Iterator[tuple[str, Tensor]]:
    for kind in (F32, F16, BF16):
        scored = [_leaf(32, 2, 3), _leaf(32, 1, 9, kind=kind), _leaf(2, 3), _leaf(9, 3, kind=F16)]
        yield kind.name, build.build("LIGHTNING_INDEXER", scored)
    yield "F32", build.build("DSV4_HC_COMB", [_leaf(24, 3), _leaf(3), _leaf(24)], {"n_iter": 2})
    x, post = _leaf(32, 4, 3), _leaf(4, 3)
    yield "plain", build.build("DSV4_HC_PRE", [x, post], {"scale": 1.0})
    yield "gated", build.build("DSV4_HC_PRE", [x, x], {"scale": 1.0, "gated": 1})
    yield "plain", build.build("DSV4_HC_POST", [_leaf(32, 3), x, post])
    yield "mixed", build.build("DSV4_HC_POST", [_leaf(32, 3), x, post, _leaf(4, 4, 3)])
