"""Wheels built from the checkout, and a fresh environment to install them into."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("rpc_backend", "plugins", "transports", "setup.py", "pyproject.toml", "README.md", "LICENSE")
TIMEOUT_S = 120


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    subprocess.run(command, check=True, timeout=TIMEOUT_S, capture_output=True, text=True)


def build(source: Path, folder: Path) -> Path:
    """Build the wheel of `source`, with the build backend of this environment, and return its path."""
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def project_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy: nothing that an earlier build left behind can get in."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy)
    return build(copy, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def example_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the worked example of docs/plugins.md."""
    copy = tmp_path_factory.mktemp("example") / "source"
    shutil.copytree(ROOT / "docs" / "example_plugin", copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return build(copy, tmp_path_factory.mktemp("example-wheel"))


@pytest.fixture
def fresh_environment(tmp_path: Path) -> Callable[..., Path]:
    """A function that makes an environment with the wheels given, and returns its folder of programs.

    Foreign packages come from this environment's site-packages through a path file: nothing is downloaded. The
    project itself cannot come in that way; its editable installation works through a path file of its own,
    which is not read there.
    """

    def make(*wheels: Path) -> Path:
        folder = tmp_path / "environment"
        venv.EnvBuilder(with_pip=False).create(folder)
        programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
        pip("--python", programs / "python", "install", "--quiet", "--no-deps", "--no-index", *wheels)
        (packages,) = folder.glob("**/site-packages")
        (packages / "foreign.pth").write_text(sysconfig.get_path("purelib") + "\n")
        return programs

    return make
