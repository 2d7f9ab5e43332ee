"""How a prompt is cut into chunks.

Belongs here: widths and counts, nothing else. Must not be here: steps (`context`), or whose turn it is (`engine`).

With n equal chunks and s stages a prompt takes n + s - 1 turns of which each stage works in n, so many narrow chunks
keep all stages busy; but a chunk has costs of its own, and below `_NARROWEST` tokens it costs more per token.
"""

from __future__ import annotations

from collections.abc import Sequence

_CHUNKS_PER_STAGE = 8
_NARROWEST = 32


def chunk_width(n_tokens: int, ubatch: int, n_stages: int) -> int:
    """Return the tokens of a chunk, at most `ubatch`, for `n_tokens` that pass the stages one chunk after the other.

    Widths are powers of two wherever `ubatch` does not decide, so that few graph shapes serve all prompts.
    """
    if n_stages < 2:
        return ubatch
    wanted = -(-n_tokens // (_CHUNKS_PER_STAGE * n_stages))
    return min(ubatch, max(_NARROWEST, 1 << (wanted - 1).bit_length()))


def chunked(tokens: Sequence[int], width: int) -> list[Sequence[int]]:
    """Cut tokens into parts of `width`, the last one shorter."""
    return [tokens[start : start + width] for start in range(0, len(tokens), width)]
