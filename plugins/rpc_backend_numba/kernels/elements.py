"""Single elements of a float type that is known only when the kernel runs.

Belongs here: the slow way that handles any mix of types and strides. Must not be here: whole vectors.
"""

from __future__ import annotations

from typing import Any

from rpc_backend_numba.element_codes import BF16, F32
from rpc_backend_numba.kernels.convert import make_element_load, make_element_store
from rpc_backend_numba.simd import helper
from rpc_backend_numba.simd.layer import Layer


def make_any_element(layer: Layer) -> tuple[Any, Any]:
    """Return `load(code, address)` and `store(code, address, value)` for F32, F16 and BF16."""
    load_f32, load_f16, load_bf16 = (make_element_load(layer, name) for name in ("F32", "F16", "BF16"))
    store_f32, store_f16, store_bf16 = (make_element_store(layer, name) for name in ("F32", "F16", "BF16"))

    @helper
    def load_any(code, address):
        if code == F32:
            return load_f32(address)
        if code == BF16:
            return load_bf16(address)
        return load_f16(address)

    @helper
    def store_any(code, address, value):
        if code == F32:
            store_f32(address, value)
        elif code == BF16:
            store_bf16(address, value)
        else:
            store_f16(address, value)

    return load_any, store_any
