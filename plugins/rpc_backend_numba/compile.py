"""From a numba function to machine code.

Belongs here: running numba and LLVM. Must not be here: where machine code is kept (`cache`) or loaded (`code`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from numba import njit, types

from rpc_backend_numba.simd.inline import OPTIONS


def compile_function(function: Callable[..., None], n_args: int, machine: llvm.TargetMachine) -> tuple[str, bytes]:
    """Compile a function of `n_args` int64 arguments; return its symbol and an object file.

    The machine code follows numba's calling convention: two pointers for a result and an exception, which such a
    function never touches, come before its arguments.
    """
    dispatcher: Any = njit(**OPTIONS)(function)
    signature = (types.intp,) * n_args
    dispatcher.compile(signature)
    compiled = dispatcher.overloads[signature]
    module = llvm.parse_assembly(compiled.library.get_llvm_str())
    return compiled.fndesc.llvm_func_name, machine.emit_object(module)
