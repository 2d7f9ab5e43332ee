"""Sizes and tables as plain text.

Belongs here: what plans and commands need to print themselves. Must not be here: terminal colours, or any decision.
"""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def human_nbytes(nbytes: int) -> str:
    """Return a size in the largest binary unit that keeps it at 1 or above: `1.50 GiB`, `17 B`."""
    value, unit = float(nbytes), "B"
    for larger in _UNITS:
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{value:.2f} {unit}"


def exact_nbytes(nbytes: int) -> str:
    """Return a size for an error message, in a readable unit and in bytes: `1.50 GiB (1610612736 bytes)`."""
    return f"{human_nbytes(nbytes)} ({nbytes} bytes)"


def render_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of one length as text in columns, the first row being the headings."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)
