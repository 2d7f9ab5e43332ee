"""From a numba function to machine code.

Belongs here: running numba and LLVM. Must not be here: where machine code is kept (`cache`) or loaded (`code`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from numba import njit, types
from numba.core.codegen import JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock

from rpc_backend_numba.simd.inline import OPTIONS

_LEFT_OUT = ("_add_module", "set_env")
"""Steps of `JITCPUCodegen` that give LLVM what to make machine code of, and write into that.

One that some numba lacks takes its time there.
"""


def compile_function(function: Callable[..., None], n_args: int, machine: llvm.TargetMachine) -> tuple[str, bytes]:
    """Compile a function of `n_args` int64 arguments; return its symbol and an object file.

    The machine code follows numba's calling convention: two pointers for a result and an exception, which such a
    function never touches, come before its arguments.
    """
    dispatcher: Any = njit(**OPTIONS)(function)
    signature = (types.intp,) * n_args
    with _nothing_runs_here():
        dispatcher.compile(signature)
    compiled = dispatcher.overloads[signature]
    module = llvm.parse_assembly(compiled.library.get_llvm_str())
    return compiled.fndesc.llvm_func_name, machine.emit_object(module)


@contextmanager
def _nothing_runs_here() -> Iterator[None]:
    """Keep numba from making machine code for this process, of every helper by itself and of the whole once more.

    That is a fifth of the time, and nobody would run it. Numba has no option for it: `no_compile` is for the outermost
    function only. The lock is the one under which all of the process compile.
    """
    with global_compiler_lock:
        kept = {step: getattr(JITCPUCodegen, step) for step in _LEFT_OUT if hasattr(JITCPUCodegen, step)}
        try:
            for step in kept:
                setattr(JITCPUCodegen, step, _nothing)
            yield
        finally:
            for step, function in kept.items():
                setattr(JITCPUCodegen, step, function)


def _nothing(*_: Any) -> None:
    """In place of a step that is left out."""
