"""The RDMA guest: what can be checked without starting it."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


image_tool = load("rdma_guest_image")
guest = load("rdma_guest")


def fake_packages(root: Path) -> Path:
    modules = root / "lib/modules/6.1.0/kernel"
    modules.mkdir(parents=True)
    (root / "boot").mkdir()
    (root / "boot/vmlinuz-6.1.0").write_bytes(b"kernel")
    needs = {"9p": "9pnet,fscache", "9pnet": "", "fscache": "netfs", "netfs": "", "rdma_rxe": "ib-core", "ib-core": ""}
    for name, need in needs.items():
        (modules / f"{name}.ko").write_bytes(b"\x7fELF\0license=GPL\0depends=" + need.encode() + b"\0name=x\0")
    for program in ("bin/busybox", "usr/bin/qemu-system-x86_64", "usr/bin/rdma"):
        path = root / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"program")
    return root


def test_modules_come_after_what_they_need(tmp_path: Path) -> None:
    names = [path.stem for path in image_tool.Image(fake_packages(tmp_path)).modules()]
    assert sorted(names) == ["9p", "9pnet", "fscache", "ib-core", "netfs", "rdma_rxe"]
    for earlier, later in (("9pnet", "9p"), ("netfs", "fscache"), ("fscache", "9p"), ("ib-core", "rdma_rxe")):
        assert names.index(earlier) < names.index(later)


def test_the_archive_is_one_that_cpio_reads(tmp_path: Path) -> None:
    disk = image_tool.initial_ram_disk(image_tool.Image(fake_packages(tmp_path)), "exec true")
    assert disk.startswith(b"070701")
    assert len(disk) % 4 == 0
    offset, names, files = 0, [], {}
    while "TRAILER!!!" not in names:
        fields = [int(disk[start : start + 8], 16) for start in range(offset + 6, offset + 110, 8)]
        nbytes, path_nbytes = fields[6], fields[11]
        names.append(disk[offset + 110 : offset + 110 + path_nbytes - 1].decode())
        start = offset + (110 + path_nbytes + 3) // 4 * 4
        files[names[-1]] = disk[start : start + nbytes]
        offset = start + (nbytes + 3) // 4 * 4
    assert offset == len(disk)
    assert files["command"] == b"exec true"
    assert files["modules/order"].decode().split()[-1] == "rdma_rxe.ko"
    assert b"insmod" in files["init"]
    assert b"@RDMA@" not in files["init"]


def test_what_is_missing_in_the_packages_is_named(tmp_path: Path) -> None:
    with pytest.raises(image_tool.ImageError, match="no kernel"):
        image_tool.Image(tmp_path).kernel()
    with pytest.raises(image_tool.ImageError, match="hold no bin/not-a-program"):
        image_tool.Image(tmp_path).find("bin/not-a-program")


def test_the_command_runs_in_the_current_folder_with_its_words_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = guest.script(image_tool.Image(fake_packages(tmp_path / "root")), ["echo", "two words", "$HOME"])
    assert text.splitlines()[-2:] == [f"cd {tmp_path}", "exec echo 'two words' '$HOME'"]
    assert "export RDMAV_DRIVERS=rxe" in text


def test_a_machine_that_cannot_do_it_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    with pytest.raises(guest.GuestError, match="needs Linux on x86_64, this is Linux on s390x"):
        guest.prepare(tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(guest.GuestError, match="no apt-get"):
        guest.prepare(tmp_path)


def test_packages_that_cannot_be_had_end_the_command_clearly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")

    def refuse(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 100, "", "E: Unable to fetch some archives\n")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert guest.main(["--cache", str(tmp_path / "cache"), "--", "true"]) == 1
    said = capsys.readouterr().err
    assert "Debian packages of the RDMA guest cannot be had" in said
    assert "Unable to fetch" in said
    assert not (tmp_path / "cache" / "complete").exists()


def test_packages_are_kept_while_the_list_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    monkeypatch.setattr(guest, "download", calls.append)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    for _ in range(2):
        assert guest.prepare(tmp_path / "cache") == tmp_path / "cache" / "root"
    assert len(calls) == 1
    monkeypatch.setattr(guest, "WANTED", ("another",))
    guest.prepare(tmp_path / "cache")
    assert len(calls) == 2
