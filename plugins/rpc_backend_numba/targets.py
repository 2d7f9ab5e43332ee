"""Which instructions this CPU has, and what kernels are compiled for.

Belongs here: targets, their choice and the machine that emits code for them. Must not be here: numba.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from rpc_backend.plugin_api import ConfigError

CHOICES = ("auto", "avx512", "avx2", "portable")


@dataclass(frozen=True, slots=True)
class Target:
    """What kernels may use.

    `lanes` is how many float32 one vector holds; `byte_dot` whether the CPU multiplies and adds bytes in one
    instruction (AVX-512 VNNI); `half_convert` whether it converts half-precision floats; `byte_shuffle` whether
    x86's byte shuffle is there.
    """

    name: str
    lanes: int
    byte_dot: bool
    half_convert: bool
    byte_shuffle: bool


@cache
def cpu_features() -> dict[str, bool]:
    """Return LLVM's names of CPU features and whether this CPU has each."""
    return dict(llvm.get_host_cpu_features())


def cpu_name() -> str:
    """Return LLVM's name of this CPU."""
    return str(llvm.get_host_cpu_name())


def choose_target(choice: str = "auto") -> Target:
    """Return the target of an option value.

    Raises:
        ConfigError: an unknown value, or instructions this CPU does not have.
    """
    if choice not in CHOICES:
        raise ConfigError(f"cpu_features={choice!r} is not known; known: {', '.join(CHOICES)}")
    available = [name for name, needed in _NEEDS.items() if all(cpu_features().get(item) for item in needed)]
    if choice == "auto":
        choice = available[0]
    if choice not in available:
        raise ConfigError(f"cpu_features={choice}: this CPU ({cpu_name()}) has only {', '.join(available)}")
    return _target(choice)


def _target(name: str) -> Target:
    features = cpu_features()
    if name == "avx512":
        return Target(name, 16, features.get("avx512vnni", False), True, True)
    return Target(name, 8, False, name == "avx2", name == "avx2")


_NEEDS: dict[str, tuple[str, ...]] = {
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "f16c", "fma"),
    "avx2": ("avx2", "f16c", "fma"),
    "portable": (),
}


def machine_features(target: Target) -> str:
    """Return the feature string that code for `target` is emitted with."""
    enabled = dict(cpu_features())
    if target.name == "portable":
        enabled = {name: has and name in _PORTABLE_X86 for name, has in enabled.items()} if is_x86() else enabled
    elif target.name == "avx2":
        enabled = {name: has and not name.startswith("avx512") for name, has in enabled.items()}
    text = ",".join(("+" if has else "-") + name for name, has in enabled.items())
    return text + ",-prefer-256-bit" if target.name == "avx512" else text


_PORTABLE_X86 = frozenset({"64bit", "cmov", "cx8", "cx16", "fxsr", "mmx", "sse", "sse2", "sahf"})
"""What every 64-bit x86 CPU has: the portable target is tested without anything newer."""


def is_x86() -> bool:
    """Whether this is a 64-bit x86 CPU."""
    return platform.machine().lower() in ("x86_64", "amd64")


def create_machine(target: Target) -> llvm.TargetMachine:
    """Return the LLVM target machine that emits code for `target`."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.Target.from_triple(llvm.get_process_triple())
    cpu = "" if target.name == "portable" and is_x86() else cpu_name()
    return triple.create_target_machine(
        cpu=cpu, features=machine_features(target), opt=3, reloc="default", codemodel="jitdefault", jit=True
    )
