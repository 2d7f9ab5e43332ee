"""Finding special tokens in text.

Belongs here: cutting a text at the special tokens it spells. Must not be here: which tokens are special
(`vocabulary.py` says their kinds), encoding what lies between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rpc_backend.host.tokenizer.vocabulary import TokenKind, Vocabulary

_ALWAYS = frozenset({TokenKind.USER_DEFINED})
_WHEN_PARSED = frozenset({TokenKind.USER_DEFINED, TokenKind.CONTROL, TokenKind.UNKNOWN})


class SpecialTokens:
    """The special tokens of a vocabulary, the longest first: that is the order in which they are sought."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._always = _longest_first(vocabulary, _ALWAYS)
        self._when_parsed = _longest_first(vocabulary, _WHEN_PARSED)

    def partition(self, text: str, *, parse_special: bool) -> list[str | int]:
        """Cut `text` into plain stretches (str, none empty) and special tokens (their ids), in order.

        User-defined tokens are always found, control and unknown ones only with `parse_special`.
        """
        parts: list[str | int] = [text] if text else []
        for special, token in self._when_parsed if parse_special else self._always:
            if special in text:
                parts = [piece for part in parts for piece in _cut(part, special, token)]
        return parts


def _longest_first(vocabulary: Vocabulary, kinds: frozenset[TokenKind]) -> Sequence[tuple[str, int]]:
    found = [(vocabulary.texts[token], token) for token, kind in enumerate(vocabulary.kinds) if kind in kinds]
    return sorted(found, key=lambda entry: (-len(entry[0].encode()), entry[1]))


def _cut(part: str | int, special: str, token: int) -> list[str | int]:
    if isinstance(part, int):
        return [part]
    pieces: list[str | int] = []
    for stretch in part.split(special):
        pieces += [stretch, token] if stretch else [token]
    return pieces[:-1]  # the last stretch has no token after it
