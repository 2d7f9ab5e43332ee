"""Freed memory is kept where the C library can be told to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rpc_backend.worker import freed_memory
from rpc_backend.worker.freed_memory import UploadWatch

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
    assert not freed_memory.give_freed_memory_back()


_KEPT = """
import ctypes, sys, threading
from rpc_backend.worker.freed_memory import give_freed_memory_back, keep_freed_memory

if not keep_freed_memory():
    sys.exit(3)
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = (ctypes.c_size_t,)
library.free.argtypes = (ctypes.c_void_p,)

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

def use():
    blocks = [library.malloc(2 << 20) for _ in range(8)]
    for block in blocks:
        ctypes.memset(block, 1, 2 << 20)
    for block in blocks:
        library.free(block)

before = resident()
thread = threading.Thread(target=use)
thread.start()
thread.join()
kept = resident() - before
give_freed_memory_back()
print(kept, resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only on Linux")
def test_what_another_thread_freed_goes_back() -> None:
    done = subprocess.run([sys.executable, "-c", _KEPT], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == 3:
        pytest.skip("the C library is no glibc")
    kept_pages, left_pages = map(int, done.stdout.split())
    assert kept_pages > 3000
    assert left_pages < 500


@pytest.mark.parametrize(
    ("received", "n_given_back"),
    [
        ([0, 0], 0),
        ([900_000, 1_800_000, 2_700_000], 0),  # little in all
        ([9_000_000, 18_000_000, 27_000_000], 0),  # not over yet
        ([9_000_000, 18_000_000, 18_000_100, 18_000_200], 1),
        ([9_000_000, 9_000_000, 18_000_000, 18_000_000], 2),
        ([900_000 * n for n in range(1, 12)], 2),  # a trickle: after each 4 MiB
    ],
)
def test_memory_goes_back_when_an_upload_is_over(received: list[int], n_given_back: int) -> None:
    given_back: list[bool] = []
    counts = iter(received)
    watch = UploadWatch(lambda: next(counts), lambda: given_back.append(True))
    for _ in received:
        watch.look()
    assert len(given_back) == n_given_back
