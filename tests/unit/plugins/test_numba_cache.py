"""Compiled kernels on disk."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rpc_backend_numba import cache, targets
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


def test_cpus_that_multiply_bytes_in_other_ways_share_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as two of one name, of which a virtual machine hides what one of them can do."""
    avx2 = dict.fromkeys(("avx2", "f16c", "fma", "sse2"), True)
    folders = set()
    for has_vnni in (True, False):
        monkeypatch.setattr(targets, "cpu_features", lambda has=has_vnni: {**avx2, "avxvnni": has})
        target = choose_target("avx2")
        folders |= {cache_folder(tmp_path, target), cache_folder(tmp_path, replace(target, byte_dot="widened"))}
    assert len(folders) == 4


HOLDER = """
import sys, time
from pathlib import Path
from rpc_backend_numba.cache import KernelCache
with KernelCache(Path(sys.argv[1])).turn("walk", 0.0) as is_mine:
    print(is_mine, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that is compiling `walk`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def test_a_kernel_is_compiled_by_one_process_at_a_time(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    kernels = KernelCache(tmp_path)
    with kernels.turn("walk", 0.0) as is_mine, kernels.turn("rows.Q4_0", 0.0) as other_is_mine:
        assert (is_mine, other_is_mine) == (False, True)


def test_a_process_that_hangs_is_waited_for_no_longer_than_said(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    started = time.monotonic()
    with KernelCache(tmp_path).turn("walk", 0.2) as is_mine:
        assert not is_mine
    assert 0.2 <= time.monotonic() - started < 5


def test_a_process_that_dies_gives_up_its_turn(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    with KernelCache(tmp_path).turn("walk", 10.0) as is_mine:
        assert is_mine


def test_turns_leave_nothing_behind(tmp_path: Path) -> None:
    with KernelCache(tmp_path).turn("walk", 0.0) as is_mine:
        assert is_mine
    assert list(tmp_path.iterdir()) == []
    with KernelCache(None).turn("walk", 0.0) as is_mine:
        assert is_mine


def test_folders_of_older_versions_go_but_for_the_newest(tmp_path: Path) -> None:
    others = [tmp_path / f"cpu-avx2-{number:020x}" for number in range(9)]
    for age, folder in enumerate(others):
        folder.mkdir()
        (folder / "walk.o").write_bytes(OBJECT)
        os.utime(folder, (1e9 - age, 1e9 - age))
    (tmp_path / "something else").mkdir()
    own = tmp_path / ("cpu-avx2-" + "f" * 20)

    KernelCache(own).write("walk", "a_symbol", OBJECT)

    left = {path.name for path in tmp_path.iterdir()}
    assert left == {own.name, "something else", *(folder.name for folder in others[:6])}


@pytest.mark.parametrize("first_use", ["write", "turn"])
def test_a_new_folder_prunes_those_beside_it_however_it_was_made(tmp_path: Path, first_use: str) -> None:
    old = [tmp_path / f"cpu-avx2-{number:020x}" for number in range(9)]
    for number, folder in enumerate(old):
        folder.mkdir()
        os.utime(folder, (number, number))
    kernels = KernelCache(tmp_path / f"cpu-avx512-{0xABC:020x}")
    if first_use == "write":
        kernels.write("walk", "a_symbol", OBJECT)
    else:
        with kernels.turn("walk", 0.0):
            kernels.write("walk", "a_symbol", OBJECT)

    assert kernels.read("walk") == ("a_symbol", OBJECT)
    assert [folder for folder in old if folder.exists()] == old[3:]
