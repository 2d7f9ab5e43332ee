"""When weights are interleaved, and when they must be plain.

Belongs here: what the plans of a device agree on, and moving bytes accordingly. Must not be here: products
(`lowering`).

Weights are interleaved before the first run of a plan that multiplies by them. Whatever else reads or writes them in
a plan, and sees bytes as they were written, makes them plain for good.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import RLock

import numpy as np
import numpy.typing as npt

from rpc_backend.plugin_api import Graph, Tensor
from rpc_backend_numba.arguments import Code, Operand, Private, Row
from rpc_backend_numba.builder import PlanBuilder
from rpc_backend_numba.formats import TILE_ROWS
from rpc_backend_numba.large_pages import SmallPages
from rpc_backend_numba.library import KernelLibrary
from rpc_backend_numba.table import Table
from rpc_backend_numba.threads import ComputeThreads
from rpc_backend_numba.weights import Region, WeightsBuffer

_log = logging.getLogger(__name__)
_READ_NBYTES = 4 << 20

Place = tuple[WeightsBuffer, Region]
Move = tuple[int, int, int]
"""Address of the source, address of the target, number of groups."""


@dataclass(slots=True)
class Uses:
    """What a graph does with buffers of weights: matrices, tables of rows, and ranges that must be plain."""

    matrices: list[Place] = field(default_factory=list)
    tables: list[Place] = field(default_factory=list)
    plain: list[tuple[WeightsBuffer, int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph) -> Uses:
        """Collect the uses of a placed graph."""
        uses = cls()
        for node in graph.nodes:
            if node.op is not None and node.op.moves_data and node.n_elements:
                uses._add(node, None)
                for number, source in enumerate(node.sources):
                    uses._add(source, node.op.name if number == 0 else None)
        uses.plain = _merged(uses.plain)
        return uses

    def _add(self, tensor: Tensor, first_source_of: str | None) -> None:
        buffer, offset = tensor.location()
        if not isinstance(buffer, WeightsBuffer):
            return
        region = Region.of(tensor)
        if region is not None and first_source_of in ("MUL_MAT", "MUL_MAT_ID"):
            self.matrices.append((buffer, region))
        elif region is not None and region.n_matrices == 1 and first_source_of == "GET_ROWS":
            self.tables.append((buffer, region))
        else:
            self.plain.append((buffer, offset, offset + tensor.nbytes))


class Arranger:
    """The order of the weights of a device. `version` changes whenever a plan may have to look again."""

    def __init__(self, library: KernelLibrary, threads: ComputeThreads) -> None:
        self.lock = RLock()
        self.version = 0
        self._library = library
        self._threads = threads
        self._small_pages = SmallPages()

    def count_run(self) -> None:
        """A plan ran. Called with the lock held."""
        self._small_pages.count_run()

    def settle(self, uses: Uses) -> frozenset[Place]:
        """Return which matrices and tables are to be interleaved, now that this plan is there too."""
        for buffer, start, end in uses.plain:
            self._pin(buffer, start, end)
        for buffer, region in uses.matrices:
            if region not in buffer.agreed:
                self._agree(buffer, region)
        for buffer, region in uses.tables:
            if region not in buffer.agreed:
                self._part(buffer, region)
        agreed = frozenset(place for place in (*uses.matrices, *uses.tables) if place[1] in place[0].agreed)
        self._library.addresses(  # compiled now rather than in a first run
            name for _, region in agreed for name in ("rearrange", f"interleave.{region.kind.name}")
        )
        return agreed

    def interleave(self, places: Iterable[Place]) -> None:
        """Interleave what is agreed to be and is not yet."""
        found = [(buffer, region) for buffer, region in places if region not in buffer.interleaved]
        if not found:
            return
        started = time.monotonic()
        for buffer in {id(buffer): buffer for buffer, _ in found}.values():
            with buffer.lock:
                regions = [region for holder, region in found if holder is buffer]
                self._move("interleave", [(region, _moves_in_place(buffer, region)) for region in regions])
                buffer.interleaved |= set(regions)
            start, end = min(region.offset for region in regions), max(region.end for region in regions)
            self._small_pages.add(buffer.bytes, start, end)
        nbytes = sum(region.end - region.offset for _, region in found)
        _log.debug("interleaved %d tensors, %d bytes, in %.3f s", len(found), nbytes, time.monotonic() - started)

    def before_write(self, buffer: WeightsBuffer, start: int, end: int) -> None:
        """Get regions ready for bytes [start, end) to be written as they are."""
        for region in buffer.touched(start, end):
            if start <= region.offset and region.end <= end:
                buffer.interleaved -= {region}
                self.version += 1
            else:
                self._make_plain(buffer, region)

    def read(self, buffer: WeightsBuffer, region: Region, start: int, out: memoryview) -> None:
        """Put the original bytes of an interleaved region over those in `out`, which begins at `start`."""
        target: npt.NDArray[np.uint8] = np.frombuffer(out, np.uint8)
        end, group_nbytes = start + out.nbytes, region.row_nbytes * TILE_ROWS
        most = max(1, _READ_NBYTES // group_nbytes)
        space = np.empty(most * group_nbytes, np.uint8)
        for offset, count in region.pieces(start, end):
            for done in range(0, count, most):
                taken, place = min(most, count - done), offset + done * group_nbytes
                self._move("separate", [(region, [(buffer.address + place, space.ctypes.data, taken)])])
                low, high = max(start, place), min(end, place + taken * group_nbytes)
                target[low - start : high - start] = space[low - place : high - place]

    def _agree(self, buffer: WeightsBuffer, region: Region) -> None:
        """Have a region interleaved, unless part of it is in use otherwise."""
        if self._part(buffer, region):
            self._pin(buffer, region.offset, region.end)
        elif not any(region.overlaps(*pinned) for pinned in buffer.pinned):
            buffer.agreed |= {region}
            self.version += 1

    def _part(self, buffer: WeightsBuffer, region: Region) -> bool:
        """Give up regions that share bytes with another one; return whether there were any."""
        others = [other for other in buffer.agreed if other.overlaps(region.offset, region.end)]
        for other in others:
            self._pin(buffer, other.offset, other.end)
        return bool(others)

    def _pin(self, buffer: WeightsBuffer, start: int, end: int) -> None:
        touching = {pinned for pinned in buffer.pinned if pinned[0] <= end and start <= pinned[1]}
        whole = min((start, *(first for first, _ in touching))), max((end, *(last for _, last in touching)))
        if whole in touching:
            return
        buffer.pinned = buffer.pinned - touching | {whole}
        for region in [region for region in buffer.agreed if region.overlaps(start, end)]:
            if region in buffer.interleaved:
                self._make_plain(buffer, region)
            buffer.agreed -= {region}
            self.version += 1

    def _make_plain(self, buffer: WeightsBuffer, region: Region) -> None:
        with buffer.lock:
            self._move("separate", [(region, _moves_in_place(buffer, region))])
            buffer.interleaved -= {region}
        self.version += 1

    def _move(self, how: str, work: Sequence[tuple[Region, Sequence[Move]]]) -> None:
        builder = PlanBuilder(self._library.target.lanes)
        for region, moves in work:
            for source, target, count in moves:
                builder.add(_row(f"{how}.{region.kind.name}", region, source, target, count))
        table = Table(builder, self._library, self._threads.n_threads)  # holds what its rows point to
        self._threads.run(table.rows)


def _merged(ranges: Iterable[tuple[WeightsBuffer, int, int]]) -> list[tuple[WeightsBuffer, int, int]]:
    """Return ranges that cover the same bytes: of a buffer that graphs compute in, few instead of thousands."""
    merged: list[tuple[WeightsBuffer, int, int]] = []
    for buffer, start, end in sorted(ranges, key=lambda item: (id(item[0]), item[1])):
        if merged and merged[-1][0] is buffer and start <= merged[-1][2]:
            merged[-1] = buffer, merged[-1][1], max(end, merged[-1][2])
        else:
            merged.append((buffer, start, end))
    return merged


def _moves_in_place(buffer: WeightsBuffer, region: Region) -> list[Move]:
    base = buffer.address
    return [(base + offset, base + offset, count) for offset, count in region.pieces(region.offset, region.end)]


def _row(code: str, region: Region, source: int, target: int, n_groups: int) -> Row:
    nbytes = region.row_nbytes * TILE_ROWS
    ne, nb = (nbytes, n_groups, 1, 1), (1, nbytes, nbytes * n_groups, nbytes * n_groups)
    params = [Code(code), region.n // region.kind.block_size, region.row_nbytes, Private()]
    operands = [Operand(target, ne, nb), Operand(source, ne, nb)]
    return Row("rearrange", 0, operands, params, [], [], nbytes)
