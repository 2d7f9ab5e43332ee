"""Kernels compiled by another process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from rpc_backend_numba import compiler
from rpc_backend_numba.cache import KernelCache
from rpc_backend_numba.compiler import Compiler
from rpc_backend_numba.library import KernelLibrary
from rpc_backend_numba.targets import choose_target


@pytest.fixture
def made(tmp_path: Path):
    """A compiler into `tmp_path`, whose process ends with the test."""
    made = Compiler("portable", tmp_path)
    yield made
    if made._child is not None:
        made._child.end()


def test_kernels_are_in_the_folder_once_it_says_so_and_one_process_does_all(made: Compiler, tmp_path: Path) -> None:
    assert made.compile(["scale"])
    assert KernelCache(tmp_path).has("scale")
    first = made._child
    assert made.compile(["clamp", "scale"])
    assert KernelCache(tmp_path).has("clamp")
    assert made._child is first


ANSWERS = "import sys\nfor line in sys.stdin: print('done', flush=True)"


def test_it_ends_when_it_is_idle_and_comes_back(made: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_IDLE_S", 0.05)
    made._command = [sys.executable, "-c", ANSWERS]
    assert made.compile(["scale"])
    first = made._child
    assert first is not None
    deadline = time.monotonic() + 20
    while first._process.returncode is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert first._process.returncode == 0
    assert made.compile(["scale"])
    assert made._child is not first


@pytest.mark.parametrize("program", ["", "input(); raise SystemExit(1)", "input(); print('what?')"])
def test_one_that_fails_is_told_and_ended(made: Compiler, program: str) -> None:
    made._command = [sys.executable, "-c", program]
    assert not made.compile(["scale"])
    assert made._child is not None
    assert made._child._process.returncode is not None
    made._command = [sys.executable, "-c", ANSWERS]
    assert made.compile(["scale"])


def test_one_that_was_killed_between_two_requests_is_told(made: Compiler) -> None:
    made._command = [sys.executable, "-c", ANSWERS]
    assert made.compile(["scale"])
    assert made._child is not None
    made._child._process.kill()
    assert not made.compile(["scale"])


def test_one_that_hangs_is_killed(made: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_LIMIT_S", 0.3)
    made._command = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = time.monotonic()
    assert not made.compile(["scale"])
    assert time.monotonic() - started < 30


def test_it_ends_with_its_library(tmp_path: Path) -> None:
    made = Compiler("portable", tmp_path)
    made._command = [sys.executable, "-c", ANSWERS]
    assert made.compile(["scale"])
    child = made._child
    assert child is not None
    del made
    assert child._process.returncode is not None


class _Elsewhere:
    """Pretends to be the process that compiles: it has what `compiled` says."""

    def __init__(self, cache: KernelCache, compiled: dict[str, tuple[str, bytes]]) -> None:
        self.cache, self.compiled, self.asked = cache, compiled, []

    def compile(self, names) -> bool:
        self.asked += names
        for name, found in self.compiled.items():
            self.cache.write(name, *found)
        return True


@pytest.mark.parametrize("has_numba", [False, True])
def test_the_library_asks_it_and_compiles_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_numba: bool
) -> None:
    target = choose_target("portable")
    KernelLibrary(target, KernelCache(tmp_path / "here")).compile_missing(["scale"])
    scale = KernelCache(tmp_path / "here").read("scale")
    assert scale is not None
    cache, here = KernelCache(tmp_path / "cache"), []
    library = KernelLibrary(target, cache)
    elsewhere = _Elsewhere(cache, {"scale": scale})
    monkeypatch.setattr(library, "_compiler", elsewhere)
    if not has_numba:
        monkeypatch.delitem(sys.modules, "numba")
    monkeypatch.setattr(library, "_compile_all", lambda names: here.extend(names) or library._addresses.update(clamp=1))
    if has_numba:
        library._addresses["scale"] = 0
    assert library.addresses(["clamp", "scale"])["clamp"] == 1
    assert elsewhere.asked == ([] if has_numba else ["clamp", "scale"])
    assert here == ["clamp"]
