from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a program of the checkout by its name, as if it had been started there."""
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module
