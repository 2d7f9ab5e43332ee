"""Chunks of prompts: their widths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc_backend.host.chunks import chunk_width, chunked


@pytest.mark.parametrize(
    ("n_tokens", "ubatch", "n_stages", "width"),
    [
        (512, 128, 1, 128),  # one stage: nothing to keep busy beside it
        (512, 128, 2, 32),
        (512, 512, 4, 32),
        (2048, 512, 2, 128),
        (2000, 512, 2, 128),
        (8192, 512, 2, 512),
        (100_000, 512, 2, 512),
        (100_000, 48, 2, 48),
        (8, 128, 2, 32),
        (512, 5, 2, 5),
    ],
)
def test_chunks_are_narrow_enough_for_the_stages_and_no_narrower(n_tokens, ubatch, n_stages, width):
    assert chunk_width(n_tokens, ubatch, n_stages) == width


@given(n_tokens=st.integers(1, 5000), ubatch=st.integers(1, 1024), n_stages=st.integers(1, 8))
def test_chunks_hold_every_token_and_never_more_than_ubatch(n_tokens, ubatch, n_stages):
    tokens = list(range(n_tokens))
    chunks = chunked(tokens, chunk_width(n_tokens, ubatch, n_stages))
    assert [token for chunk in chunks for token in chunk] == tokens
    assert max(map(len, chunks)) <= ubatch
    assert len(set(map(len, chunks[:-1]))) <= 1
