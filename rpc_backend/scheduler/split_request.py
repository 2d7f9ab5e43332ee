"""What a user asks of a split, and its text form.

Belongs here: the request record and its parser. Must not be here: models, devices, memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from rpc_backend.errors import SplitError

FORMS = "'auto', 'ratio:3,1' (or just '3,1') or 'layers:20,10'"

_Number = TypeVar("_Number", int, float)


class SplitKind(StrEnum):
    """How the numbers of a request are meant."""

    AUTOMATIC = "auto"
    RATIO = "ratio"
    LAYERS = "layers"


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """How to divide the layers: automatically, by ratio, or by exact counts (one number per device).

    A ratio must be above 0. A count may be 0 (that device is then not used), but not all of them.

    Raises:
        SplitError: numbers that no model could be split by.
    """

    kind: SplitKind = SplitKind.AUTOMATIC
    numbers: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is SplitKind.AUTOMATIC:
            _need(not self.numbers, self, "an automatic split takes no numbers")
            return
        _need(len(self.numbers) > 0, self, "it has no numbers")
        _need(all(math.isfinite(number) for number in self.numbers), self, "every number must be finite")
        if self.kind is SplitKind.RATIO:
            _need(min(self.numbers) > 0, self, "every ratio must be above 0; leave a device out to not use it")
        else:
            whole = all(number == int(number) and number >= 0 for number in self.numbers)
            _need(whole and max(self.numbers) > 0, self, "layer counts are whole numbers, not negative, not all 0")

    @classmethod
    def automatic(cls) -> SplitRequest:
        return cls()

    @classmethod
    def ratios(cls, ratios: Sequence[float]) -> SplitRequest:
        return cls(SplitKind.RATIO, tuple(ratios))

    @classmethod
    def layers(cls, counts: Sequence[int]) -> SplitRequest:
        return cls(SplitKind.LAYERS, tuple(counts))

    def __str__(self) -> str:
        numbers = ",".join(f"{number:g}" for number in self.numbers)
        return f"{self.kind.value}:{numbers}" if numbers else self.kind.value


def parse_split(text: str) -> SplitRequest:
    """Read `auto`, `ratio:3,1`, `layers:20,10`, or a plain list, which is a ratio as in ggml's tools.

    Raises:
        SplitError: the text has none of these forms; it is quoted.
    """
    kind, colon, numbers = text.strip().partition(":")
    if not colon:
        kind, numbers = ("auto", "") if kind == "auto" else ("ratio", kind)
    if kind == "auto" and not colon:
        return SplitRequest.automatic()
    if kind == "ratio":
        return SplitRequest.ratios(_numbers(text, numbers, float))
    if kind == "layers":
        return SplitRequest.layers(_numbers(text, numbers, int))
    raise SplitError(f"split {text!r} is not one of {FORMS}")


def _numbers(text: str, numbers: str, kind: Callable[[str], _Number]) -> list[_Number]:
    try:
        return [kind(part) for part in numbers.split(",")]
    except ValueError as error:
        raise SplitError(f"split {text!r} is not one of {FORMS}: {error}") from error


def _need(condition: bool, request: SplitRequest, reason: str) -> None:
    if not condition:
        raise SplitError(f"split '{request}' cannot be: {reason}")
