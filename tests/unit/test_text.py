"""Sizes and tables as text."""

from __future__ import annotations

import pytest

from rpc_backend.text import exact_nbytes, human_nbytes, render_table


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (3 << 29, "1.50 GiB"), (2**62, "4096.00 PiB")],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert human_nbytes(nbytes) == text


def test_exact_size_has_both_figures() -> None:
    assert exact_nbytes(2048) == "2.00 KiB (2048 bytes)"


def test_columns_line_up() -> None:
    assert render_table([["a", "b"], ["long", "c"]]) == "a     b\nlong  c"
