"""Compiled kernels on disk."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from rpc_backend_numba import cache
from rpc_backend_numba.cache import KernelCache, cache_folder
from rpc_backend_numba.targets import choose_target

OBJECT = b"\x7fELF\0 with zeros \0 inside"


def test_a_kernel_comes_back_as_it_was(tmp_path: Path) -> None:
    KernelCache(tmp_path / "new").write("rows.Q4_0", "a_symbol", OBJECT)

    assert KernelCache(tmp_path / "new").read("rows.Q4_0") == ("a_symbol", OBJECT)
    assert KernelCache(tmp_path / "new").read("rows.Q4_1") is None


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:20] + b"x" + data[21:], lambda data: b""]
)
def test_a_damaged_kernel_is_not_used(tmp_path: Path, damage, caplog: pytest.LogCaptureFixture) -> None:
    KernelCache(tmp_path).write("walk", "a_symbol", OBJECT)
    path = tmp_path / "walk.o"
    path.write_bytes(damage(path.read_bytes()))

    assert KernelCache(tmp_path).read("walk") is None
    assert "walk.o is damaged" in caplog.text


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a folder")
    kernels = KernelCache(tmp_path / "file" / "below")

    kernels.write("walk", "a_symbol", OBJECT)
    kernels.write("other", "a_symbol", OBJECT)

    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "cannot be kept" in warnings[0].getMessage()
    assert kernels.read("walk") is None


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(cache.os, "replace", full)
    KernelCache(tmp_path).write("walk", "a_symbol", OBJECT)

    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_nothing_is_kept() -> None:
    kernels = KernelCache(None)
    kernels.write("walk", "a_symbol", OBJECT)

    assert kernels.read("walk") is None


def test_the_folder_follows_sources_versions_and_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, package = choose_target("portable"), tmp_path / "package"
    package.mkdir()
    (package / "helper.py").write_text("SIZE = 1\n")
    first = cache_folder(tmp_path, target, package)

    assert cache_folder(tmp_path, target, package) == first
    (package / "helper.py").write_text("SIZE = 2\n")
    changed_source = cache_folder(tmp_path, target, package)
    changed_target = cache_folder(tmp_path, replace(target, name="avx2"), package)
    monkeypatch.setattr(cache, "version", lambda _: "0.0.0")
    changed_version = cache_folder(tmp_path, target, package)
    assert len({first, changed_source, changed_target, changed_version}) == 4
