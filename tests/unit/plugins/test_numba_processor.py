"""What LLVM says about the processor, kept on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rpc_backend_numba import processor, targets
from rpc_backend_numba.processor import known_processor
from rpc_backend_numba.targets import Processor

CPUINFO = "processor : {n}\nvendor_id : A\nmodel : 17\ncpu MHz : {mhz}\nflags : {flags}\n\nprocessor : 1\nflags : z\n"
SAID = Processor("a-cpu", {"avx2": True, "avx512f": False})


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pretends to be an x86 machine whose LLVM says `SAID`; the list has one item for each time it was asked."""
    asked: list[Processor] = []
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(processor, "is_x86", lambda: True)
    monkeypatch.setattr(processor, "_ask", lambda: asked.append(SAID) or SAID)
    be(tmp_path)
    return asked


def be(folder: Path, n: int = 0, mhz: str = "2000", flags: str = "avx2") -> None:
    (folder / "cpuinfo").write_text(CPUINFO.format(n=n, mhz=mhz, flags=flags))


def test_llvm_is_asked_once(tmp_path: Path, machine: list[Processor]) -> None:
    first = known_processor(tmp_path)
    be(tmp_path, n=1, mhz="3500.1")  # what changes all the time is no other processor
    assert [first, known_processor(tmp_path)] == [SAID, SAID]
    assert len(machine) == 1


@pytest.mark.usefixtures("machine")
def test_a_processor_of_other_features_is_another(tmp_path: Path, machine: list[Processor]) -> None:
    known_processor(tmp_path)
    be(tmp_path, flags="avx2 avx512f")
    known_processor(tmp_path)
    assert len(machine) == 2


def test_another_llvm_is_asked_again(tmp_path: Path, machine: list[Processor], monkeypatch: pytest.MonkeyPatch) -> None:
    known_processor(tmp_path)
    monkeypatch.setattr(processor, "package_version", lambda _: "0.0.0")
    known_processor(tmp_path)
    assert len(machine) == 2


def test_a_damaged_answer_is_not_used(tmp_path: Path, machine: list[Processor]) -> None:
    known_processor(tmp_path)
    (path,) = (tmp_path / "numba-kernels").iterdir()
    path.write_bytes(path.read_bytes().replace(b"avx2", b"avx3"))
    assert known_processor(tmp_path) == SAID
    assert len(machine) == 2


@pytest.mark.parametrize("why", ["not x86", "no list of processors", "a folder that cannot be written"])
def test_where_nothing_can_be_kept_llvm_is_asked(
    tmp_path: Path, machine: list[Processor], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    root = tmp_path
    if why == "not x86":
        monkeypatch.setattr(processor, "is_x86", lambda: False)
    elif why == "no list of processors":
        (tmp_path / "cpuinfo").unlink()
    else:
        root = tmp_path / "cpuinfo"
    assert [known_processor(root), known_processor(root)] == [SAID, SAID]
    assert len(machine) == 2


@pytest.mark.skipif(not targets.is_x86() or not Path("/proc/cpuinfo").exists(), reason="LLVM is asked each time")
def test_a_process_that_has_not_loaded_llvm_has_another_one_ask(tmp_path: Path) -> None:
    program = (
        "import json, sys; from pathlib import Path; from rpc_backend_numba.processor import known_processor\n"
        f"print(json.dumps(known_processor(Path({str(tmp_path)!r})))); sys.exit('llvmlite' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert Processor(*json.loads(done.stdout)) == Processor(targets.cpu_name(), targets.cpu_features())


def test_if_that_fails_llvm_is_asked_here(
    tmp_path: Path, machine: list[Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "llvmlite", raising=False)
    monkeypatch.setattr(processor.sys, "executable", "/nonexistent/python")
    assert known_processor(tmp_path) == SAID
    assert len(machine) == 1
