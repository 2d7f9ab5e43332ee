from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def tables(tool: Callable[[str], ModuleType]) -> ModuleType:
    return tool("tables")


def test_a_section_is_a_heading_and_a_table(tables: ModuleType) -> None:
    assert list(tables.section("T", [["a", "b"], ["1", "2"]])) == [
        "## T",
        "",
        "| a | b |",
        "|---|---|",
        "| 1 | 2 |",
        "",
    ]


def test_each_part_is_replaced_without_touching_the_others(tables: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    tables.write_part(page, "", ["# Page", ""])
    tables.write_part(page, "one", ["first"])
    tables.write_part(page, "two", ["", "second", ""])
    whole = page.read_text()
    assert whole == "# Page\n\n<!-- part: one -->\n\nfirst\n\n<!-- part: two -->\n\nsecond\n"
    tables.write_part(page, "one", ["first", "", "again"])
    assert page.read_text() == whole.replace("first", "first\n\nagain")
    tables.write_part(page, "", ["# Title"])
    tables.write_part(page, "one", ["first"])
    assert page.read_text() == whole.replace("# Page", "# Title")


def test_a_page_without_marks_is_all_first_part(tables: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\ntext\n")
    tables.write_part(page, "new", ["more"])
    assert page.read_text() == "# Page\n\ntext\n\n<!-- part: new -->\n\nmore\n"
