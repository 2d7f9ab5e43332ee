"""Machine code in memory.

Belongs here: loading object files and calling addresses. Must not be here: numba, or the form of object files (`elf`).
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from rpc_backend_numba.elf import Image, UnknownFormError, read_image
from rpc_backend_numba.targets import Target, create_machine, is_x86

if TYPE_CHECKING:
    import llvmlite.binding as llvm

_log = logging.getLogger(__name__)
_READ_AND_RUN = 1 | 4  # PROT_READ | PROT_EXEC
_ADDRESSES = 1 << 64


class CodeLoader:
    """Holds loaded object files; an address is good as long as its loader lives.

    Kernels on 64-bit x86 and Linux need no LLVM, which takes 50 MiB; the rest is LLVM's.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._images: list[mmap.mmap] = []

    @cached_property
    def machine(self) -> llvm.TargetMachine:
        """What emits code for the target."""
        return create_machine(self._target)

    @cached_property
    def _engine(self) -> llvm.ExecutionEngine:
        import llvmlite.binding as llvm

        return llvm.create_mcjit_compiler(llvm.parse_assembly(""), create_machine(self._target))

    def load(self, symbol: str, object_file: bytes) -> int:
        """Load an object file and return the address of `symbol`."""
        if is_x86() and sys.platform == "linux":
            try:
                return self._place(read_image(symbol, object_file))
            except (UnknownFormError, OSError) as reason:
                _log.debug("%s is left to LLVM: %s", symbol, reason)
        return self._load_by_llvm(symbol, object_file)

    def _place(self, image: Image) -> int:
        """Put an image into memory that can run, and return the address of its function.

        Raises:
            UnknownFormError: it calls what is not in this process.
            OSError: there is no such memory.
        """
        memory = mmap.mmap(-1, len(image.content), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        memory[:] = image.content
        for fixup in image.fixups:
            value = (_address_of(fixup.symbol) if fixup.symbol else address) + fixup.addend
            memory[fixup.offset : fixup.offset + 8] = (value % _ADDRESSES).to_bytes(8, "little")
        library = ctypes.CDLL(None, use_errno=True)
        if library.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), _READ_AND_RUN):
            raise OSError(ctypes.get_errno(), "memory may not be made to run")
        self._images.append(memory)
        return address + image.entry

    def _load_by_llvm(self, symbol: str, object_file: bytes) -> int:
        import llvmlite.binding as llvm

        self._engine.add_object_file(llvm.ObjectFileRef.from_data(object_file))
        self._engine.finalize_object()
        return int(self._engine.get_function_address(symbol))


def _address_of(function: str) -> int:
    """Return the address of a function of the libraries in this process. Raises UnknownFormError: there is none."""
    try:
        found = getattr(ctypes.CDLL(None), function)
    except AttributeError as error:
        raise UnknownFormError(f"{function} is not in this process") from error
    return ctypes.cast(found, ctypes.c_void_p).value or 0


def as_callable(address: int, n_args: int) -> Callable[..., int]:
    """Return a function that calls machine code of `compile_function` with int64 arguments, without the GIL."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *([ctypes.c_int64] * n_args))
    raw = kind(address)
    unused = (ctypes.c_int64 * 2)()
    return lambda *args: int(raw(ctypes.addressof(unused), ctypes.addressof(unused) + 8, *args))
