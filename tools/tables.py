"""Tables of a page of measurements, and the parts that such a page is written in.

Belongs here: Markdown. Must not be here: measuring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "measurements.md"
_MARK = "<!-- part: {} -->"


def section(title: str, rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield the lines of a heading and a table; the first row is the table's heading."""
    yield f"## {title}"
    yield ""
    yield from table(rows)
    yield ""


def table(rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield the lines of a table; the first row is its heading."""
    for number, row in enumerate(rows):
        yield "| " + " | ".join(row) + " |"
        if number == 0:
            yield "|" + "---|" * len(row)


def write_part(page: Path, name: str, lines: Iterable[str]) -> None:
    """Replace the part `name` of a page, or add it; all other parts stay as they are.

    A part begins at its mark and ends at the next one; the part named "" is what comes before the first mark.
    """
    parts = _parts(page.read_text(encoding="utf-8").splitlines() if page.exists() else [])
    parts[name] = list(lines)
    page.write_text("\n".join(_joined(parts)) + "\n", encoding="utf-8")


def _parts(lines: Iterable[str]) -> dict[str, list[str]]:
    before, after = _MARK.split("{}")
    parts: dict[str, list[str]] = {"": []}
    name = ""
    for line in lines:
        if line.startswith(before) and line.endswith(after):
            name = line.removeprefix(before).removesuffix(after)
            parts[name] = []
        else:
            parts[name].append(line)
    return parts


def _joined(parts: dict[str, list[str]]) -> Iterator[str]:
    for name, lines in parts.items():
        first, last = 0, len(lines)
        while first < last and not lines[first]:
            first += 1
        while first < last and not lines[last - 1]:
            last -= 1
        if name:
            yield ""
            yield _MARK.format(name)
            yield ""
        yield from lines[first:last]
