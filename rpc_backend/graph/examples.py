"""One or more typical nodes of each operation, to ask a device what it takes.

Belongs here: small graphs of one node. Must not be here: data, or running anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from rpc_backend.graph import build
from rpc_backend.graph.element_types import BF16, ELEMENT_TYPES, F16, F32, FLOATS, I32, I64, Q8_0, ElementType
from rpc_backend.graph.ops import OPS, Glu, RopeMode, Triangle, Unary
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
    yield "F32", build.solve_tri(_leaf(8, 8), _leaf(4, 8))
