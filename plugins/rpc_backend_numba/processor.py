"""What LLVM says about this machine's processor, kept on disk: LLVM takes 50 MiB that a cached start does not need.

Belongs here: keeping the answer, and telling processors apart. Must not be here: what follows from it (`targets`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

from rpc_backend_numba.cache import package_version, read_whole, write_whole
from rpc_backend_numba.targets import Processor, cpu_features, cpu_name, is_x86

_log = logging.getLogger(__name__)
_CPUINFO = Path("/proc/cpuinfo")
_LIMIT_S = 60.0
_FACTS = frozenset({"vendor_id", "cpu family", "model", "model name", "stepping", "flags"})


def known_processor(root: Path) -> Processor:
    """Return LLVM's name and features of this processor: those kept below `root`, or else LLVM is asked."""
    identity = _identity()
    if identity is None:
        return _ask()
    path = root / "numba-kernels" / f"processor-{identity}"
    kept = read_whole(path)
    if kept is None and "llvmlite" not in sys.modules:
        _keep_elsewhere(path)
        kept = read_whole(path)
    if kept is not None:
        return Processor(*json.loads(kept))
    return _keep(path)


def _keep_elsewhere(path: Path) -> None:
    """Have another process ask LLVM, which so never comes into this one."""
    command = [sys.executable, "-m", "rpc_backend_numba.processor", str(path)]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        _log.debug("another process cannot ask LLVM: %s", error)


def _keep(path: Path) -> Processor:
    found = _ask()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(found).encode())
    except OSError as error:
        _log.debug("what LLVM says about the processor cannot be kept: %s", error)
    return found


def _ask() -> Processor:
    return Processor(cpu_name(), cpu_features())


def _identity() -> str | None:
    """Return a digest of all that LLVM's answer depends on; None where that is not known."""
    if not is_x86():
        return None
    try:
        with _CPUINFO.open() as file:
            fields = [line.partition(":") for line in takewhile(str.strip, file)]  # the first processor's
    except OSError:
        return None
    facts = [(name.strip(), value.strip()) for name, _, value in fields if name.strip() in _FACTS]
    return hashlib.blake2b(json.dumps([package_version("llvmlite"), facts]).encode(), digest_size=10).hexdigest()


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
