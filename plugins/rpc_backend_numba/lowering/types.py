"""Element types by what kernels can do with them.

Belongs here: sets of types. Must not be here: operations.
"""

from __future__ import annotations

from rpc_backend.plugin_api import ElementType, element_type
from rpc_backend_numba.formats import FORMATS

F32, F16, BF16, I8, I32, I64 = (element_type(name) for name in ("F32", "F16", "BF16", "I8", "I32", "I64"))
FLOATS = frozenset({F32, F16, BF16})
QUANTIZED = frozenset(element_type(name) for name in FORMATS)
DECODABLE = FLOATS | QUANTIZED
"""Rows of these can be read as float32."""
ENCODABLE = FLOATS | {element_type(name) for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")}
"""Rows of these can be made from float32."""


def is_byte_like(kind: ElementType) -> bool:
    """Whether elements can be moved one by one."""
    return kind.dtype is not None
