"""Values of command-line options that are more than a word or a number.

Belongs here: click parameter types. Must not be here: options or commands.
"""

from __future__ import annotations

import re
from typing import Any

import click

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)


class ByteSize(click.ParamType):
    """A size such as `4G` (decimal), `512MiB` (binary) or plain bytes, as whole bytes."""

    name = "SIZE"

    def __init__(self, low: int = 1) -> None:
        """`low` is the least size that is taken."""
        self._low = low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value.strip())
        factor = _FACTORS.get(match[2].lower()) if match else None
        if match is None or factor is None:
            self.fail(f"{value!r} is not a size; write 4G (decimal), 512MiB (binary) or a count of bytes", param, ctx)
        nbytes = round(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor
        if nbytes < self._low:
            self.fail(f"{value!r} is less than one byte", param, ctx)
        return nbytes


class Counts(click.ParamType):
    """Whole numbers from 1 on, separated by commas, as a tuple."""

    name = "N[,N…]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isdecimal() and int(part) > 0 for part in parts):
            self.fail(f"{value!r} is not a list of counts such as 1,8,32", param, ctx)
        return tuple(int(part) for part in parts)
