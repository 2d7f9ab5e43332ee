#!/usr/bin/env python3
"""Measure what `docs/measurements.md` reports, and write that page.

    python tools/measure.py            print the page
    python tools/measure.py --write    write docs/measurements.md

Belongs here: the page. Must not be here: how a figure is measured (`measure_models`, `measure_pipeline`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import measure_models
import measure_pipeline

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "measurements.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, then print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    page = "\n".join(lines()) + "\n"
    if options.write:
        PAGE.write_text(page, encoding="utf-8")
    else:
        sys.stdout.write(page)
    return 0


def lines() -> Iterator[str]:
    """Yield the page line by line."""
    yield "# Measurements"
    yield ""
    yield "Made by `python tools/measure.py --write`; a run takes about ten minutes. Speeds are medians of several runs"
    yield f"on a shared machine: {measure_models.machine()}."
    yield ""
    yield from measure_models.lines()
    yield ""
    yield from measure_pipeline.lines()


if __name__ == "__main__":
    sys.exit(main())
