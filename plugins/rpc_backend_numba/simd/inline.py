"""The decorator of functions that kernels call.

Belongs here: options that all our numba functions share. Must not be here: compiling to machine code
(`compile`).
"""

from __future__ import annotations

from typing import Any

from numba import njit

OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""No Python wrapper, no exceptions: such a function is plain machine code that touches no interpreter."""

helper = njit(forceinline=True, **OPTIONS)
"""Marks a small function that is inlined into the kernels that call it."""
