"""Nodes that one kernel computes together.

Belongs here: which neighbours in a graph are joined, and when they may be. Must not be here: kernels, or nodes that
share a stage because of what they read (`stages`).

Nobody can know which results a client reads later, so the kernel writes those in the middle too, and it does not matter
who else reads them. What matters is memory: a kernel goes row by row, so a result may lie where a source lies only if
each row of it lies over that same row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rpc_backend.plugin_api import Tensor, host_address
from rpc_backend_numba.arguments import Operand, Param
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.formats import GROUP
from rpc_backend_numba.lowering.parts import row_parts, shared_parts
from rpc_backend_numba.lowering.types import F32


@dataclass(frozen=True, slots=True)
class Fusion:
    """Operations that follow each other; `fits` says of such nodes whether `emit` can add the row of all."""

    ops: tuple[str, ...]
    fits: Callable[[Sequence[Tensor]], bool]
    emit: Callable[[PlanBuilder, Sequence[Tensor]], None]


def groups_of(nodes: Sequence[Tensor]) -> Iterator[tuple[Sequence[int], Fusion | None]]:
    """Yield positions of nodes that are computed together, with how, or of one node alone.

    Nodes that move no data, or none, are left out.
    """
    positions = [index for index, node in enumerate(nodes) if node.op and node.op.moves_data and node.n_elements]
    first = 0
    while first < len(positions):
        found = _fusion_at([nodes[index] for index in positions[first : first + _LONGEST]])
        count = len(found.ops) if found else 1
        yield positions[first : first + count], found
        first += count


def _fusion_at(nodes: Sequence[Tensor]) -> Fusion | None:
    names = tuple(node.op.name if node.op else "" for node in nodes)
    for fusion in FUSIONS:
        if names[: len(fusion.ops)] == fusion.ops and fusion.fits(nodes[: len(fusion.ops)]):
            return fusion
    return None


def _fits_norm_chain(nodes: Sequence[Tensor]) -> bool:
    """[ADD,] RMS_NORM and MUL by weights, each of the one before: packed F32 rows, all but the weights of one shape."""
    *sums, norm, product = nodes
    weights, rows = product.sources[1], [*nodes, *norm.sources, *(source for item in sums for source in item.sources)]
    is_chain = product.sources[0] is norm and (not sums or norm.sources[0] is sums[0])
    is_packed = all(tensor.type is F32 and tensor.nb[0] == 4 for tensor in (*rows, weights))
    has_shape = all(tensor.ne == norm.ne for tensor in rows) and weights.ne[0] == norm.ne[0]
    if not (is_chain and is_packed and has_shape) or any(_overlap(weights, result) for result in nodes):
        return False
    sources = _first_sources(nodes)
    others = [(result, other) for result in nodes for other in (*nodes, *sources)]
    return all(_is_same_place(result, other) or not _overlap(result, other) for result, other in others)


def _norm_chain(builder: PlanBuilder, nodes: Sequence[Tensor]) -> None:
    *sums, norm, product = nodes
    sources, weights = _first_sources(nodes), product.sources[1]
    in_place = any(_overlap(result, source) for result in nodes for source in sources)
    is_packed = all(result.is_contiguous for result in nodes)
    pieces = shared_parts(product) if is_packed and not in_place else None  # threads would read what others write
    parts = pieces or (row_parts(product) if is_packed else None)
    piece = product.ne[0] if pieces is None else GROUP
    place: list[Param] = [host_address(sums[0]), *sums[0].nb[1:]] if sums else [0, 0, 0, 0]
    params: list[Param] = [float(norm.params["eps"]), piece, *place]
    second = sources[1] if sums else None
    operands = [Operand.of(tensor) if tensor else None for tensor in (product, sources[0], second, weights, norm)]
    builder.row(
        "norm_chain.ADD_NORM_MUL" if sums else "norm_chain.NORM_MUL",
        product,
        [*sources, weights],
        params,
        operands=operands,
        parts=[parts],
        also_writes=[*sums, norm],
    )


def _first_sources(nodes: Sequence[Tensor]) -> Sequence[Tensor]:
    """What a norm chain begins with: both summands, or what is normed."""
    return nodes[0].sources


def _is_same_place(a: Tensor, b: Tensor) -> bool:
    return host_address(a) == host_address(b) and a.nb == b.nb


def _overlap(a: Tensor, b: Tensor) -> bool:
    start, other = host_address(a), host_address(b)
    return start < other + b.nbytes and other < start + a.nbytes


FUSIONS = (
    Fusion(("ADD", "RMS_NORM", "MUL"), _fits_norm_chain, _norm_chain),
    Fusion(("RMS_NORM", "MUL"), _fits_norm_chain, _norm_chain),
)
"""Longer ones first."""

_LONGEST = max(len(fusion.ops) for fusion in FUSIONS)
