"""Kernels compiled before anything needs them.

Belongs here: which kernels models use, and compiling them on several cores. Must not be here: compiling one
(`library`), or where they are kept (`cache`).

Numba compiles one function at a time per process, so each core gets a process; they share the folder of the cache and
its turns, as any two workers do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rpc_backend.plugin_api import DeviceError
from rpc_backend_numba.cache import KernelCache
from rpc_backend_numba.formats import FORMATS
from rpc_backend_numba.library import KernelLibrary
from rpc_backend_numba.targets import choose_target

_LIMIT_S = 900.0
_FLOATS = ("F32", "F16", "BF16")
_ONCE = (
    "run", "serve", "product_tiles", "product_rows", "expert_groups", "expert_units.quantized",
    "expert_units.float", "expert_tiles", "expert_rows", "add_id", "rearrange", "inputs.F32",
    "inputs_float_row.F32", "inputs_float_tile.F32", "tile.float", "rms_norm", "scale", "get_rows", "set_rows",
    "angles", "rope.NORMAL", "rope.NEOX", "attention.F16", "attention.F32", "attention.any", "soft_max.none",
    "soft_max.F32", "soft_max.F16", "binary.ADD", "binary.SUB", "binary.MUL", "binary.DIV", "glu.SWIGLU",
    "glu.GEGLU", "unary.SILU", "unary.GELU", "unary.SIGMOID", "sum_rows", "cumsum", "argmax", "argsort", "top_k",
    "concat", "repeat", "clamp", "ssm_conv", "gated_delta_net",
)  # fmt: skip


def kernel_names() -> list[str]:
    """Return the kernels that models of any weight format use, those that take longest first."""
    return [*_quantized(), *_ONCE, *_of_floats()]


def _quantized() -> Iterator[str]:
    for kind in ("tile", "rows", "interleave", "separate", "pick", "to_float"):
        yield from (f"{kind}.{name}" for name in FORMATS)


def _of_floats() -> Iterator[str]:
    for kind in ("panel", "float_rows", "to_float", "from_float"):
        yield from (f"{kind}.{name}" for name in _FLOATS)
    yield from (f"from_float.{name}" for name in ("Q8_0", "Q4_0"))


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
    names = kernel_names()
    ordered = names if index % 2 == 0 else names[1:] + names[:1]
    KernelLibrary(choose_target(target_name), KernelCache(folder)).compile_missing(ordered)


if __name__ == "__main__":
    _compile_share(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
