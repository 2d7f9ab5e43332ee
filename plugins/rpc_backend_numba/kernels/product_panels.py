"""Float weights unpacked into panels: as many rows as a vector has lanes, their elements interleaved.

Belongs here: filling a panel from rows. Must not be here: products over panels (`product_tiles`), quantised weights
(`interleave`).

`panel_<type>(weights, row_stride, n_rows, n, panel, spare)`: a panel is float32 [element][row]; what lanes from
`n_rows` on hold is of no use, and a tile does not keep it; `spare` holds as many vectors as a vector has lanes.
"""

from __future__ import annotations

from typing import Any

from numba import types

from rpc_backend_numba.kernels.convert import ELEMENT_NBYTES, make_element_load, make_vector_load
from rpc_backend_numba.simd import store, zero
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.simd.tiles import transpose_square

_F32 = types.float32


def make_panel(layer: Layer, type_name: str) -> Any:
    """Return the kernel `panel` of F32, F16 or BF16 weights."""
    F32, lanes, nbytes = layer.F32, layer.lanes, ELEMENT_NBYTES[type_name]
    load_element, load_vector = make_element_load(layer, type_name), make_vector_load(layer, type_name)
    transpose = transpose_square(F32)

    def panel(weights, row_stride, n_rows, n, target, spare):
        whole = n - n % lanes
        for row in range(n_rows, lanes):
            store(spare + 4 * lanes * row, zero(F32))
        for i in range(0, whole, lanes):
            for row in range(n_rows):
                store(spare + 4 * lanes * row, load_vector(weights + row * row_stride + nbytes * i))
            transpose(spare, 4 * lanes, target + 4 * lanes * i)
        for i in range(whole, n):
            for row in range(lanes):
                value = _F32(0.0)
                if row < n_rows:
                    value = load_element(weights + row * row_stride + nbytes * i)
                store(target + 4 * (lanes * i + row), value)

    return panel
