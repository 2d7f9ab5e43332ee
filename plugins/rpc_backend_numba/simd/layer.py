"""The vector layer of one target: what kernels are written against.

Belongs here: vector types of one width and what depends on the target's features. Must not be here: kernels.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.simd import precise
from rpc_backend_numba.simd.byte_dots import dot4_intrinsic
from rpc_backend_numba.simd.functions import make_exp, make_tanh
from rpc_backend_numba.simd.halves import make_bf16, make_half
from rpc_backend_numba.simd.vectors import vector
from rpc_backend_numba.targets import Target


class Layer:
    """Vector types and functions of one width on one target; kernels are closures over one of these.

    `F32` and `I32` hold `lanes` elements, `U8` and `I8` four times as many. `load_half(address)` and
    `load_bf16(address)` give an `F32`; `store_half` and `store_bf16` write one. `exp` is fast, `precise_exp` and
    `precise_log` give the nearest float32.
    """

    def __init__(self, target: Target, lanes: int | None = None) -> None:
        self.target = target
        self.lanes = lanes or target.lanes
        self.F32 = vector(types.float32, self.lanes)
        self.I32 = vector(types.int32, self.lanes)
        self.U8 = vector(types.uint8, 4 * self.lanes)
        self.I8 = vector(types.int8, 4 * self.lanes)
        self.dot4 = self.dot4_up_to(255)
        self.exp = make_exp(self.lanes)
        self.precise_exp, self.precise_log = precise.make_exp(self.lanes), precise.make_log(self.lanes)
        self.tanh = make_tanh(self.exp, self.lanes)
        halves = make_half(target.half_convert, self.lanes)
        self.load_half, self.store_half, self.half_values, self.half_value, self.half_bits = halves
        self.load_bf16, self.store_bf16, self.bf16_bits = make_bf16(self.lanes)

    def dot4_up_to(self, largest: int) -> Any:
        """Return `dot4` for unsigned bytes of at most `largest`: fewer instructions, the same results."""
        return dot4_intrinsic(self.target.byte_dot, largest)

    def of_width(self, lanes: int) -> Layer:
        """Return this target's layer for vectors of another width."""
        return self if lanes == self.lanes else Layer(self.target, lanes)
