"""The text form of a split."""

from __future__ import annotations

import math

import pytest

from rpc_backend.errors import SplitError
from rpc_backend.scheduler import SplitKind, SplitRequest, parse_split


@pytest.mark.parametrize(
    ("text", "kind", "numbers"),
    [
        ("auto", SplitKind.AUTOMATIC, ()),
        (" auto ", SplitKind.AUTOMATIC, ()),
        ("ratio:3,1", SplitKind.RATIO, (3.0, 1.0)),
        ("3,1", SplitKind.RATIO, (3.0, 1.0)),
        ("0.5, 2", SplitKind.RATIO, (0.5, 2.0)),
        ("2", SplitKind.RATIO, (2.0,)),
        ("layers:20,10", SplitKind.LAYERS, (20, 10)),
        ("layers:20,0,10", SplitKind.LAYERS, (20, 0, 10)),
    ],
)
def test_reads_every_form(text: str, kind: SplitKind, numbers: tuple[float, ...]) -> None:
    assert parse_split(text) == SplitRequest(kind, numbers)


@pytest.mark.parametrize("text", ["auto", "ratio:3,1.5", "layers:20,10"])
def test_prints_as_it_is_read(text: str) -> None:
    assert str(parse_split(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "automatic", "auto:", "auto:1", "ratio:", "ratio:3,", "3,,1", "3;1", "layers:", "layers:1.5", "rows:1",
        "layers:a", "ratio:0,1", "ratio:-1,2", "ratio:nan,1", "ratio:inf,1", "layers:-1,31", "layers:0,0",
    ],
)  # fmt: skip
def test_refuses_what_no_model_could_be_split_by(text: str) -> None:
    with pytest.raises(SplitError, match="split"):
        parse_split(text)


@pytest.mark.parametrize("ratios", [[], [0.0, 1.0], [-1.0], [math.nan], [math.inf, 1.0]])
def test_refuses_bad_ratios(ratios: list[float]) -> None:
    with pytest.raises(SplitError):
        SplitRequest.ratios(ratios)


def test_a_request_with_numbers_is_not_automatic() -> None:
    with pytest.raises(SplitError, match="takes no numbers"):
        SplitRequest(SplitKind.AUTOMATIC, (1.0,))
