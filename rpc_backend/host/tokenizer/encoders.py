"""The two ways to turn plain text, without special tokens, into token ids.

Belongs here: byte-level BPE through the `tokenizers` package, SPM's merging by score. Must not be here:
special tokens, begin and end tokens, decoding.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from rpc_backend.errors import ModelFileError
from rpc_backend.host.tokenizer.splitters import Splitter
from rpc_backend.host.tokenizer.vocabulary import PREFIX, Vocabulary

# Stands for characters the vocabulary lacks. A raw NUL never comes out of the byte-level alphabet.
_MISSING = "\0missing\0"


class TextEncoder(Protocol):
    """Turns text into token ids."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of one stretch of plain text."""
        ...


class BpeEncoder:
    """Byte-level BPE: split by patterns, write bytes as characters, merge pairs by rank."""

    def __init__(self, vocabulary: Vocabulary, splitter: Splitter) -> None:
        self._n_vocab = len(vocabulary.texts)
        try:
            model = models.BPE(
                vocab={**vocabulary.ids, _MISSING: self._n_vocab},
                merges=list(vocabulary.merges),
                unk_token=_MISSING,
                ignore_merges=splitter.takes_whole_words,
            )
        except Exception as error:  # the package raises bare Exception: a merge of unknown tokens
            raise ModelFileError(f"{PREFIX}merges does not fit {PREFIX}tokens: {error}") from error
        self._tokenizer = Tokenizer(model)
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitter.patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`; bytes that the vocabulary lacks are left out."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return [token for token in ids if token < self._n_vocab]


class SpmEncoder:
    """SPM: join the neighbours whose joint token has the best score, leftmost first, until none is left.

    Own code instead of BPE merges made from the scores: those would have to rank the different splits
    of one token, where here only the place in the text decides.

    Source: the greedy merging that llama.cpp applies to SentencePiece models.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = vocabulary.ids
        self._scores = vocabulary.scores
        self._byte_ids = _byte_ids(vocabulary)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`; a character without a token becomes its UTF-8 bytes."""
        tokens: list[int] = []
        for piece in self._merged(text.replace(" ", "\u2581")):
            token = self._ids.get(piece)
            tokens.extend([token] if token is not None else (self._byte_ids[b] for b in piece.encode()))
        return tokens

    def _merged(self, text: str) -> list[str]:
        pieces = list(text)  # a piece merged into its left neighbour becomes ""
        before = list(range(-1, len(pieces) - 1))
        after = [*range(1, len(pieces)), -1]
        queue: list[tuple[float, int, int, int]] = []

        def offer(left: int, right: int) -> None:
            if left < 0 or right < 0:
                return
            token = self._ids.get(pieces[left] + pieces[right])
            if token is not None:
                n_chars = len(pieces[left]) + len(pieces[right])
                heapq.heappush(queue, (-self._scores[token], left, right, n_chars))

        for left in range(len(pieces) - 1):
            offer(left, left + 1)
        while queue:
            _, left, right, n_chars = heapq.heappop(queue)
            is_stale = not pieces[left] or not pieces[right] or len(pieces[left] + pieces[right]) != n_chars
            if is_stale:
                continue
            pieces[left] += pieces[right]
            pieces[right] = ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [piece for piece in pieces if piece]


def _byte_ids(vocabulary: Vocabulary) -> list[int]:
    """Return the token of each byte value; the unknown token where the vocabulary has no byte token."""
    unknown = vocabulary.special_ids.get("unknown")
    found = [vocabulary.ids.get(f"<0x{value:02X}>", unknown) for value in range(256)]
    known = [token for token in found if token is not None]
    if len(known) != len(found):
        missing = found.index(None)
        raise ModelFileError(f"{PREFIX}tokens has neither a byte token <0x{missing:02X}> nor an unknown token")
    return known
