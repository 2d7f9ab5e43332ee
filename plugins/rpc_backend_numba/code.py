"""Machine code in memory.

Belongs here: loading object files and calling addresses. Must not be here: numba.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import llvmlite.binding as llvm

from rpc_backend_numba.targets import Target, create_machine


class CodeLoader:
    """Holds loaded object files; an address is good as long as its loader lives."""

    def __init__(self, target: Target) -> None:
        self.machine = create_machine(target)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), create_machine(target))

    def load(self, symbol: str, object_file: bytes) -> int:
        """Load an object file and return the address of `symbol`."""
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(object_file))
        self._engine.finalize_object()
        return int(self._engine.get_function_address(symbol))


def as_callable(address: int, n_args: int) -> Callable[..., int]:
    """Return a function that calls machine code of `compile_function` with int64 arguments, without the GIL."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *([ctypes.c_int64] * n_args))
    raw = kind(address)
    unused = (ctypes.c_int64 * 2)()
    return lambda *args: int(raw(ctypes.addressof(unused), ctypes.addressof(unused) + 8, *args))
