#!/usr/bin/env python3
"""Measure what `docs/measurements.md` begins with, and write that part of the page.

    python tools/measure.py            print it
    python tools/measure.py --write    write it into docs/measurements.md; parts that other programs wrote stay

Belongs here: the page's first part. Must not be here: how a figure is measured (`measure_models`, `measure_pipeline`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import measure_models
import measure_pipeline
from tables import PAGE, write_part


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, then print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write it into {PAGE.name}")
    options = parser.parse_args(arguments)
    found = list(lines())
    if options.write:
        write_part(PAGE, "", found)
    else:
        print("\n".join(found))
    return 0


def lines() -> Iterator[str]:
    """Yield the part line by line."""
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
