"""Kernels compiled before anything needs them.

Belongs here: their order, and compiling them on several cores. Must not be here: which there are and compiling one
(`library`), or where they are kept (`cache`).

Numba compiles one function at a time per process, so each core gets a process; they share the folder of the cache and
its turns, as any two workers do.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rpc_backend.plugin_api import DeviceError
from rpc_backend_numba.cache import KernelCache
from rpc_backend_numba.library import KernelLibrary, all_kernels
from rpc_backend_numba.targets import choose_target

_LIMIT_S = 900.0
LONGEST = ("attention", "tile", "gated_delta_net", "rows")
"""Kinds of kernels that take a second or more each: they come first, so that all processes end at the same time."""


def kernel_names() -> list[str]:
    """Return all kernels there are, those that take longest first."""

    def place(name: str) -> int:
        kind = name.partition(".")[0]
        return LONGEST.index(kind) if kind in LONGEST else len(LONGEST)

    return sorted(all_kernels(), key=place)


@dataclass(frozen=True, slots=True)
class Warmed:
    """What `warm` did: kernels there are, and those of them that had to be compiled."""

    n_kernels: int
    n_compiled: int
    seconds: float


def warm(target_name: str, folder: Path) -> Warmed:
    """Compile the kernels of `kernel_names` that `folder` lacks, with a process per core.

    Raises:
        DeviceError: they were not compiled, or could not be kept.
    """
    started = time.monotonic()
    names = kernel_names()
    missing = [name for name in names if KernelCache(folder).read(name) is None]
    n_processes = min(len(missing), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    command = [sys.executable, "-m", "rpc_backend_numba.warm", target_name, str(folder)]
    processes = [subprocess.Popen([*command, str(index)]) for index in range(n_processes)]
    try:
        codes = [process.wait(max(0.1, started + _LIMIT_S - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"the kernels were not compiled within {_LIMIT_S:.0f} s") from error
    finally:
        for process in processes:
            process.kill()
            process.wait()
    left = [name for name in missing if KernelCache(folder).read(name) is None]
    if left or any(codes):
        raise DeviceError(f"{len(left)} of {len(names)} kernels were not compiled or cannot be kept in {folder}")
    return Warmed(len(names), len(missing), time.monotonic() - started)


def _compile_share(target_name: str, folder: Path, index: int) -> None:
    """Compile what is missing in `folder`; each process begins with another kernel."""
    gc.disable()  # what compiling leaves behind is little, and looking for it takes a twentieth of the time
    names = kernel_names()
    ordered = names if index % 2 == 0 else names[1:] + names[:1]
    KernelLibrary(choose_target(target_name), KernelCache(folder)).compile_missing(ordered)


if __name__ == "__main__":
    _compile_share(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
