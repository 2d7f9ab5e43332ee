"""LLVM vectors for numba: a small layer of types and operations.

Belongs here: what kernels import to work on vectors and raw addresses. Must not be here: kernels, or the
choice of a target (`targets`).

A kernel is written once against `lanes` and features and works on any CPU: where LLVM has no native vector of
that width it splits the operation.
"""

from __future__ import annotations

from rpc_backend_numba.simd.arithmetic import (
    bitcast,
    convert,
    fma,
    hmax,
    hsum,
    maximum,
    minimum,
    round_even,
    select,
    splat,
    vabs,
    vsqrt,
    zero,
)
from rpc_backend_numba.simd.inline import helper
from rpc_backend_numba.simd.memory import bits_f32, f32_bits, load, load_at, prefetch, splat_at, store, store_at
from rpc_backend_numba.simd.shuffles import (
    add_pairs,
    all_lanes,
    concat,
    even_lanes,
    extract,
    high_half,
    interleave,
    lanes_of_bits,
    lookup_intrinsic,
    low_half,
    odd_lanes,
    place,
)
from rpc_backend_numba.simd.vectors import VectorType, vector

__all__ = [
    "VectorType",
    "add_pairs",
    "all_lanes",
    "bitcast",
    "bits_f32",
    "concat",
    "convert",
    "even_lanes",
    "extract",
    "f32_bits",
    "fma",
    "helper",
    "high_half",
    "hmax",
    "hsum",
    "interleave",
    "lanes_of_bits",
    "load",
    "load_at",
    "lookup_intrinsic",
    "low_half",
    "maximum",
    "minimum",
    "odd_lanes",
    "place",
    "prefetch",
    "round_even",
    "select",
    "splat",
    "splat_at",
    "store",
    "store_at",
    "vabs",
    "vector",
    "vsqrt",
    "zero",
]
