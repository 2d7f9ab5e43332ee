"""The rules of the house that no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpc_backend import errors

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 400
ONE_OF_A_KIND = ("architectures",)  # folders of files alike, whose package says what belongs in each


def modules() -> Iterator[Path]:
    for folder in ("rpc_backend", "plugins", "transports", "tools"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_no_module_outgrows_its_file() -> None:
    grown = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules()}
    assert {name: lines for name, lines in grown.items() if lines > MOST_LINES} == {}


def test_every_module_says_what_belongs_in_it_and_what_not() -> None:
    silent = []
    for path in modules():
        if path.name == "__init__.py" or path.parent.name in ONE_OF_A_KIND or path.parent.name == "tools":
            continue
        doc = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
        if not ("elongs here" in doc and "ust not be here" in doc):
            silent.append(str(path.relative_to(ROOT)))
    assert silent == []


def test_nothing_of_ours_can_be_imported_under_a_common_name() -> None:
    for folder in ("plugins", "transports", "tools", "tests"):
        assert not (ROOT / folder / "__init__.py").exists()


def every_error(base: type[errors.RpcBackendError] = errors.RpcBackendError) -> Iterator[type[errors.RpcBackendError]]:
    yield base
    for child in base.__subclasses__():
        yield from every_error(child)


def test_error_codes_are_unique_and_drawn_in_the_tree() -> None:
    ours = [cls for cls in every_error() if cls.__module__ == errors.__name__]
    assert len({cls.code for cls in ours}) == len(ours)
    tree = errors.__doc__ or ""
    assert [cls.__name__ for cls in ours if f"{cls.__name__} [{cls.code}]" not in tree] == []


@pytest.mark.parametrize("page", ["README.md", "docs/plugins.md", "docs/architecture.md", "docs/adr/README.md"])
def test_links_of_the_pages_lead_somewhere(page: str) -> None:
    import re

    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text())
    missing = [link for link in links if "://" not in link and not (ROOT / page).parent.joinpath(link).exists()]
    assert missing == []
