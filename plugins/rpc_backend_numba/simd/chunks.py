"""Groups of weights that share words, times one column of activations.

Belongs here: reading such words once and in their order, which is what lets a CPU fetch memory ahead. Must not be
here: what is done with the sums of a group (`tiles`), or which formats share words (`kernels.tile_formats`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from rpc_backend_numba.formats import GROUP, INPUT_NBYTES, TILE_ROWS, Format
from rpc_backend_numba.intrinsics import intrinsic
from rpc_backend_numba.simd.byte_dots import emit_dot4
from rpc_backend_numba.simd.memory import emit_load, emit_load_in_order
from rpc_backend_numba.simd.tiles import FEW_COLUMNS, QuantizedStep
from rpc_backend_numba.simd.vectors import VectorType
from rpc_backend_numba.targets import ByteDot

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_QUADS = GROUP // 4
_EACH_BYTE = 0x01010101


@dataclass(frozen=True, slots=True)
class Chunk:
    """Groups whose words come from the same places of a block of interleaved rows.

    The first chunk of a block begins at `first`, the next `nbytes` on. Each four weights of all groups lie in one word
    of each of `streams`, places in the chunk, and the next four `step` on. `groups` says for each group the parts of
    its word: of which stream, shifted right by how much (below 0: left), and the bits to keep of each byte. All places
    are those of one row.
    """

    first: int
    nbytes: int
    streams: tuple[int, ...]
    step: int
    groups: tuple[tuple[tuple[int, int, int], ...], ...]


def chunk_step(kind: VectorType, form: Format, chunk: Chunk, how: ByteDot) -> Any:
    """Return `step(tile, words, numbers, inputs)`: add the products of a chunk, to a tile of one column.

    `numbers` is where `kernels.tile_formats` keeps the scales of the first group.
    """
    tile = types.UniTuple(kind, 1)
    emitter = _ChunkStep(kind.lanes, form, chunk, how)

    @intrinsic
    def step(typing_context: Any, values: Any, words: Any, numbers: Any, inputs: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            (total,) = cgutils.unpack_tuple(builder, args[0], 1)
            return cgutils.pack_array(builder, [emitter.emit_chunk(builder, total, *args[1:])])

        return tile(tile, types.intp, types.intp, types.intp), emit

    return step


class _ChunkStep(QuantizedStep):
    def __init__(self, lanes: int, form: Format, chunk: Chunk, how: ByteDot) -> None:
        super().__init__(lanes, 1, 1, form, how)
        self.chunk = chunk
        self.how: ByteDot = how
        self.words = ir.VectorType(_I32, lanes)

    def emit_chunk(self, builder: Any, total: Any, words: Any, numbers: Any, inputs: Any) -> Any:
        sources = [_plus(builder, inputs, INPUT_NBYTES * group) for group in range(len(self.chunk.groups))]
        none = ir.Constant(self.ints, None)
        chains = [[[none, self._start(builder, source, span)] for span in range(self.spans)] for source in sources]
        for quad in range(_QUADS):
            chain, span = quad % FEW_COLUMNS, quad * self.spans // _QUADS
            for of_group, source, word in zip(chains, sources, self._quads(builder, words, quad), strict=True):
                given = builder.bitcast(self._splat(builder, _plus(builder, source, 4 * quad), _I32), self.bytes)
                dots = of_group[span]
                weights = builder.bitcast(word, self.bytes)
                dots[chain] = emit_dot4(builder, self.how, self.form.largest, dots[chain], weights, given)
        for group, (source, of_group) in enumerate(zip(sources, chains, strict=True)):
            of_spans = self._numbers(builder, numbers, group)
            for span, pair in enumerate(of_group):
                total = self._add(builder, total, builder.add(*pair), of_spans, span, source)
        return total

    def _quads(self, builder: Any, words: Any, quad: int) -> list[Any]:
        """Four weights of each row, of each group."""
        places = [TILE_ROWS * (stream + self.chunk.step * quad) for stream in self.chunk.streams]
        taken = [emit_load_in_order(builder, _plus(builder, words, place), self.words) for place in places]
        found = []
        for parts in self.chunk.groups:
            bits = [self._bits(builder, taken[stream], shift, mask) for stream, shift, mask in parts]
            found.append(bits[0] if len(bits) == 1 else builder.or_(*bits))
        return found

    def _bits(self, builder: Any, word: Any, shift: int, mask: int) -> Any:
        if shift:
            turn = builder.lshr if shift > 0 else builder.shl
            word = turn(word, ir.Constant(self.words, [abs(shift)] * self.lanes))
        return builder.and_(word, ir.Constant(self.words, [mask * _EACH_BYTE] * self.lanes))

    def _numbers(self, builder: Any, numbers: Any, group: int) -> list[Any]:
        """The scales of a group, one per span."""
        places = range(self.spans * group, self.spans * (group + 1))
        return [emit_load(builder, _plus(builder, numbers, 4 * self.lanes * place), self.floats) for place in places]


def _plus(builder: Any, address: Any, nbytes: int) -> Any:
    return builder.add(address, ir.Constant(_I64, nbytes)) if nbytes else address
