"""Freed memory is kept where the C library can be told to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rpc_backend.worker import freed_memory

_FAULTS = """
import ctypes, resource, sys
from rpc_backend.worker.freed_memory import keep_freed_memory

if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(3)
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = (ctypes.c_size_t,)
library.free.argtypes = (ctypes.c_void_p,)

def use():
    blocks = [library.malloc(2 << 20) for _ in range(4)]
    for block in blocks:
        ctypes.memset(block, 1, 2 << 20)
    for block in blocks:
        library.free(block)

use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == 3:
        pytest.skip("the C library is no glibc")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only on Linux")
def test_pages_of_freed_blocks_are_not_got_again() -> None:
    assert _faults("keep") < _faults("leave") / 4


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert not freed_memory.keep_freed_memory()
