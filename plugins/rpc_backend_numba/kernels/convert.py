"""Plain element types as float32, one by one and by the vector.

Belongs here: loads and stores that convert F32, F16 and BF16. Must not be here: quantised blocks (`unpack`, `pack`).
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.simd import bits_f32, helper, load, store
from rpc_backend_numba.simd.layer import Layer

ELEMENT_NBYTES = {"F32": 4, "F16": 2, "BF16": 2}

_F32, _U16, _I32 = types.float32, types.uint16, types.int32


def make_vector_load(layer: Layer, type_name: str) -> Any:
    """Return `load(address)`: a full vector of float32."""
    F32 = layer.F32
    if type_name != "F32":
        return {"F16": layer.load_half, "BF16": layer.load_bf16}[type_name]

    @helper
    def load_float(address):
        return load(F32, address)

    return load_float


def make_vector_store(layer: Layer, type_name: str) -> Any:
    """Return `store(address, v)` of a full vector of float32."""
    if type_name != "F32":
        return {"F16": layer.store_half, "BF16": layer.store_bf16}[type_name]

    @helper
    def store_float(address, values):
        store(address, values)

    return store_float


def make_element_load(layer: Layer, type_name: str) -> Any:
    """Return `load(address)`: one element as float32."""
    half_value = layer.half_value

    @helper
    def load_f32(address):
        return load(_F32, address)

    @helper
    def load_f16(address):
        return half_value(load(_U16, address))

    @helper
    def load_bf16(address):
        return bits_f32(_I32(load(_U16, address)) << 16)

    return {"F32": load_f32, "F16": load_f16, "BF16": load_bf16}[type_name]


def make_element_store(layer: Layer, type_name: str) -> Any:
    """Return `store(address, value)` of one float32."""
    half_bits, bf16_bits = layer.half_bits, layer.bf16_bits

    @helper
    def store_f32(address, value):
        store(address, value)

    @helper
    def store_f16(address, value):
        store(address, half_bits(value))

    @helper
    def store_bf16(address, value):
        store(address, bf16_bits(value))

    return {"F32": store_f32, "F16": store_f16, "BF16": store_bf16}[type_name]
