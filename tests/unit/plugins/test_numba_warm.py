"""Kernels compiled ahead."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from rpc_backend.errors import DeviceError
from rpc_backend.graph import Tensor
from rpc_backend.testing.backend_suite import cases
from rpc_backend.testing.backend_suite.runner import Trial
from rpc_backend_numba import device, warm
from rpc_backend_numba.cache import KernelCache
from rpc_backend_numba.device import NumbaDevice
from rpc_backend_numba.library import KERNELS, KernelLibrary
from rpc_backend_numba.lowering.types import DECODABLE, ENCODABLE, FLOATS, QUANTIZED
from rpc_backend_numba.simd.layer import Layer
from rpc_backend_numba.targets import choose_target
from rpc_backend_numba.warm import kernel_names
from rpc_backend_numba.weights import Region

FEW = ["scale", "clamp", "binary.ADD"]


def test_the_names_are_those_of_all_kernels_and_none_comes_twice() -> None:
    names = kernel_names()
    assert len(set(names)) == len(names)
    assert {name.partition(".")[0] for name in names} == set(KERNELS)
    assert set(warm.LONGEST) <= set(KERNELS)


@pytest.mark.parametrize("interleaved", [False, True])
def test_all_that_the_backend_suite_needs_is_compiled_ahead(monkeypatch: pytest.MonkeyPatch, interleaved: bool) -> None:
    """Lowered and not run: a kernel, or a form of one, that nobody named would be asked for here."""
    asked: set[str] = set()

    def record(self: KernelLibrary, names: Iterable[str]) -> dict[str, int]:
        found = dict.fromkeys(names, 0)
        asked.update(found)
        return found

    monkeypatch.setattr(KernelLibrary, "addresses", record)
    monkeypatch.setattr(device, "_is_agreed", lambda tensor: interleaved and _lies_as_weights(tensor))
    made = NumbaDevice(KernelLibrary(choose_target("portable"), KernelCache(None)), 1)
    for case in cases():
        trial = Trial(made, case)
        if not trial.refused_op():
            with trial:
                pass
    made.close()

    assert asked - set(kernel_names()) == set()
    kinds = {name.partition(".")[0] for name in asked}
    assert kinds >= {"copy", "norm", "wave", "rows", "fill"}  # the suite was really lowered
    assert ("pick" in kinds) is interleaved


def _lies_as_weights(tensor: Tensor) -> bool:
    return Region.of(tensor) is not None


def test_element_types_have_the_kernels_that_lowerings_name() -> None:
    names = set(kernel_names())
    for kind in DECODABLE:
        assert f"to_float.{kind.name}" in names
    for kind in ENCODABLE:
        assert f"from_float.{kind.name}" in names
    for kind in QUANTIZED:
        assert {f"{name}.{kind.name}" for name in ("tile", "rows", "interleave", "separate", "pick")} <= names
    for kind in FLOATS:
        assert {f"{name}.{kind.name}" for name in ("inputs", "panel", "float_rows")} <= names


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
