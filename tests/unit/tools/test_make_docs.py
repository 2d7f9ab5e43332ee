from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rpc_backend.cli.main import cli
from rpc_backend.graph import OPS
from rpc_backend.protocol.commands import COMMANDS

TOOL = Path(__file__).resolve().parents[3] / "tools" / "make_docs.py"


@pytest.fixture
def make_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program as a module that writes into an empty folder."""
    spec = importlib.util.spec_from_file_location("make_docs", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.DOCS = tmp_path
    monkeypatch.setattr(sys, "argv", ["make_docs.py"])
    return module


def test_every_row_of_the_tables_is_on_a_page(make_docs: ModuleType, tmp_path: Path) -> None:
    assert make_docs.main() == 0
    commands, ops, pages = ((tmp_path / name).read_text() for name in ("commands.md", "ops.md", "cli.md"))
    assert all(f"`{row.name}`" in commands for row in COMMANDS.values())
    assert all(f"`{name}`" in ops for name in OPS)
    assert all(f"## zmq-rpc {name}\n" in pages for name in cli.commands)
    assert "| `--workers` | WORKERS | local:2 |" in pages


def test_a_page_out_of_date_fails_the_check(
    make_docs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_docs.main()
    monkeypatch.setattr(sys, "argv", ["make_docs.py", "--check"])
    assert make_docs.main() == 0
    (tmp_path / "ops.md").write_text("old")
    assert make_docs.main() == 1
    assert "docs/ops.md is out of date; run: python tools/make_docs.py" in capsys.readouterr().err
    assert (tmp_path / "ops.md").read_text() == "old"
