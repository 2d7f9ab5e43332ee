"""Kernels compiled ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpc_backend.errors import DeviceError
from rpc_backend_numba import warm
from rpc_backend_numba.cache import KernelCache
from rpc_backend_numba.library import KERNELS, KernelLibrary
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.targets import choose_target
from rpc_backend_numba.warm import kernel_names

FEW = ["scale", "clamp", "binary.ADD"]


def test_the_names_are_those_of_kernels_and_none_comes_twice() -> None:
    names = kernel_names()
    assert len(set(names)) == len(names)
    assert {name.partition(".")[0] for name in names} <= set(KERNELS)


@pytest.mark.parametrize("name", kernel_names())
def test_every_name_has_a_maker_that_takes_it(name: str) -> None:
    from importlib import import_module

    kind, _, variant = name.partition(".")
    source = KERNELS[kind]
    factory = getattr(import_module(f"rpc_backend_numba.kernels.{source.module}"), source.factory)
    assert callable(factory(Layer(choose_target("portable")), *([variant] if variant else [])))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "kernel_names", lambda: FEW)


@pytest.mark.usefixtures("few")
def test_what_is_missing_is_compiled_and_the_rest_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = KernelLibrary(choose_target("portable"), KernelCache(tmp_path))
    library.compile_missing(FEW[:2])
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(first) == ["clamp.o", "scale.o"]

    compiled: list[str] = []
    monkeypatch.setattr(KernelLibrary, "_compile", lambda self, name, layer: compiled.append(name))
    KernelLibrary(choose_target("portable"), KernelCache(tmp_path)).compile_missing(FEW)
    assert compiled == ["binary.ADD"]


@pytest.mark.usefixtures("few")
def test_when_all_are_there_no_process_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FEW:
        KernelCache(tmp_path).write(name, "a_symbol", b"code")
    monkeypatch.setattr(warm.subprocess, "Popen", lambda *_: pytest.fail("a process was started"))
    done = warm.warm("portable", tmp_path)
    assert (done.n_kernels, done.n_compiled) == (3, 0)


@pytest.mark.usefixtures("few")
def test_a_process_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm.sys, "executable", "/bin/false")
    with pytest.raises(DeviceError, match="3 of 3 kernels were not compiled"):
        warm.warm("portable", tmp_path)
