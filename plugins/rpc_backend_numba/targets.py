"""Which instructions this CPU has, and what kernels are compiled for.

Belongs here: targets, their choice and the machine that emits code for them. Must not be here: numba, or LLVM before
it is needed.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from rpc_backend.plugin_api import ConfigError

if TYPE_CHECKING:
    import llvmlite.binding as llvm

ByteDot = Literal["vnni", "pairs", "signed", "widened"]
"""How bytes are multiplied and added: by `vpdpbusd`, `pmaddubsw` and `pmaddwd`, ARM's `sdot`, or plain LLVM."""

ByteLookup = Literal["pshufb", "tbl", "selected"]
"""How bytes are looked up in a table of 16: x86's or ARM's instruction, or plain LLVM."""

CHOICES = ("auto", "avx512", "avx2", "portable")


@dataclass(frozen=True, slots=True)
class Target:
    """What kernels may use.

    `lanes` is how many float32 one vector holds; `byte_dot` how bytes are multiplied and added; `half_convert` whether
    the CPU converts half-precision floats; `byte_shuffle` how bytes are looked up. `cpu` and `features` are LLVM's name
    of the CPU and the feature string that code is emitted with.
    """

    name: str
    lanes: int
    byte_dot: ByteDot
    half_convert: bool
    byte_shuffle: ByteLookup
    cpu: str
    features: str


class Processor(NamedTuple):
    """LLVM's name of this CPU, and of each feature whether it has it."""

    name: str
    features: dict[str, bool]


@cache
def cpu_features() -> dict[str, bool]:
    """Return LLVM's names of CPU features and whether this CPU has each."""
    import llvmlite.binding as llvm

    return dict(llvm.get_host_cpu_features())


def cpu_name() -> str:
    """Return LLVM's name of this CPU."""
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_name())


def choose_target(choice: str = "auto", processor: Processor | None = None) -> Target:
    """Return the target of an option value; without `processor` LLVM is asked.

    Raises:
        ConfigError: an unknown value, or instructions this CPU does not have.
    """
    if choice not in CHOICES:
        raise ConfigError(f"cpu_features={choice!r} is not known; known: {', '.join(CHOICES)}")
    cpu, features = processor or Processor(cpu_name(), cpu_features())
    available = [name for name, needed in _NEEDS.items() if all(features.get(item) for item in needed)]
    if choice == "auto":
        choice = available[0]
    if choice not in available:
        raise ConfigError(f"cpu_features={choice}: this CPU ({cpu}) has only {', '.join(available)}")
    return Target(choice, *_means(choice, features), cpu, _machine_features(choice, features))


def _means(name: str, features: Mapping[str, bool]) -> tuple[int, ByteDot, bool, ByteLookup]:
    if name == "avx512":
        return 16, "vnni" if features.get("avx512vnni") else "pairs", True, "pshufb"
    if name == "avx2":  # AVX-VNNI is a feature of its own: the instructions of AVX-512's VNNI are not this target's
        return 8, "vnni" if features.get("avxvnni") else "pairs", True, "pshufb"
    if is_arm():
        return 8, "signed" if features.get("dotprod") else "widened", True, "tbl"
    return 8, "widened", False, "selected"


_NEEDS: dict[str, tuple[str, ...]] = {
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "f16c", "fma"),
    "avx2": ("avx2", "f16c", "fma"),
    "portable": (),
}


def _machine_features(name: str, features: Mapping[str, bool]) -> str:
    """Return the feature string that code for a target is emitted with."""
    enabled = dict(features)
    if name == "portable":
        enabled = {item: has and item in _PORTABLE_X86 for item, has in enabled.items()} if is_x86() else enabled
    elif name == "avx2":
        enabled = {item: has and not _is_of_avx512(item) for item, has in enabled.items()}
    text = ",".join(("+" if has else "-") + item for item, has in enabled.items())
    return text + ",-prefer-256-bit" if name == "avx512" else text


def _is_of_avx512(feature: str) -> bool:
    """Whether LLVM turns AVX-512 on with a feature."""
    return "avx512" in feature or feature.startswith("avx10")


_PORTABLE_X86 = frozenset({"64bit", "cmov", "cx8", "cx16", "fxsr", "mmx", "sse", "sse2", "sahf"})
"""What every 64-bit x86 CPU has: the portable target is tested without anything newer."""


def is_x86() -> bool:
    """Whether this is a 64-bit x86 CPU."""
    return platform.machine().lower() in ("x86_64", "amd64")


def is_arm() -> bool:
    """Whether this is a 64-bit ARM CPU."""
    return platform.machine().lower() in ("aarch64", "arm64")


def create_machine(target: Target) -> llvm.TargetMachine:
    """Return the LLVM target machine that emits code for `target`."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.Target.from_triple(llvm.get_process_triple())
    cpu = "" if target.name == "portable" and is_x86() else target.cpu
    return triple.create_target_machine(
        cpu=cpu, features=target.features, opt=3, reloc="default", codemodel="jitdefault", jit=True
    )
