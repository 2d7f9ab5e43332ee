"""Numbers of the element types that kernels tell apart.

Belongs here: numbers, taken from the table of the core. Must not be here: numba.
"""

from __future__ import annotations

from rpc_backend.plugin_api import element_type

F32, F16, BF16 = (element_type(name).code for name in ("F32", "F16", "BF16"))
I32, I64 = (element_type(name).code for name in ("I32", "I64"))
