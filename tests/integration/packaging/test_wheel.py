"""The wheel: what is in it, and that it works away from the checkout."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

_PLUGINS = {
    "rpc_backend_reference",
    "rpc_backend_numba",
    "rpc_transport_ggml",
    "rpc_transport_rdma",
    "rpc_transport_tcp",
}
TOP_LEVEL = {"rpc_backend", *_PLUGINS}
TIMEOUT_S = 120


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, timeout=TIMEOUT_S, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_exactly_the_expected_names(project_wheel: Path) -> None:
    names = zipfile.ZipFile(project_wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == TOP_LEVEL
    assert [name for name in names if name.endswith("LICENSE")] != []
    assert [name for name in names if "__pycache__" in name or name.startswith("test")] == []


def test_the_wheel_works_in_a_clean_environment(
    project_wheel: Path, fresh_environment: Callable[..., Path], tmp_path: Path
) -> None:
    programs = fresh_environment(project_wheel)
    code = "import sys, rpc_backend, rpc_backend_numba; print(rpc_backend.__file__); print(rpc_backend_numba.__file__)"
    for path in run(programs / "python", "-c", code, cwd=tmp_path).splitlines():
        assert Path(path).is_relative_to(programs.parent)
    listing = run(programs / "zmq-rpc-worker", "--list", cwd=tmp_path)
    assert "numba      usable" in listing
    assert "reference  usable" in listing
    assert "tcp:// ipc://  usable" in listing
    assert "failed" not in listing
    assert "Run a model" in run(programs / "zmq-rpc", "--help", cwd=tmp_path)


def test_a_plugin_that_fails_to_import_is_listed_and_the_rest_work(
    project_wheel: Path, fresh_environment: Callable[..., Path], tmp_path: Path
) -> None:
    programs = fresh_environment(project_wheel)
    (packages,) = programs.parent.glob("**/site-packages")
    metadata = packages / "rpc_broken-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rpc-broken\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[rpc_backend]\nbroken = rpc_broken\n")
    (packages / "rpc_broken.py").write_text("import library_that_is_not_here\n")
    listing = run(programs / "zmq-rpc-worker", "--list", cwd=tmp_path)
    assert "reference  usable" in listing
    assert "broken = rpc_broken  ModuleNotFoundError: No module named 'library_that_is_not_here'" in listing
