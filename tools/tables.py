"""Tables of a page of measurements.

Belongs here: Markdown. Must not be here: measuring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def section(title: str, rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield the lines of a heading and a table; the first row is the table's heading."""
    yield f"## {title}"
    yield ""
    for number, row in enumerate(rows):
        yield "| " + " | ".join(row) + " |"
        if number == 0:
            yield "|" + "---|" * len(row)
    yield ""
