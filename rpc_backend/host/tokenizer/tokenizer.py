"""The tokenizer that the rest of the host uses, and the decoder of a stream of tokens.

Belongs here: begin and end tokens, the join of special tokens and plain text, decoding. Must not be
here: how plain text is merged (`encoders.py`), which keys say what (`vocabulary.py`).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rpc_backend.errors import ConfigError, ModelFileError
from rpc_backend.host.tokenizer.encoders import BpeEncoder, SpmEncoder, TextEncoder
from rpc_backend.host.tokenizer.special import SpecialTokens
from rpc_backend.host.tokenizer.splitters import find_splitter
from rpc_backend.host.tokenizer.vocabulary import PREFIX, TokenKind, Vocabulary, read_kind

_SURROGATE = re.compile("[\ud800-\udfff]")
_HIDDEN = (TokenKind.CONTROL, TokenKind.UNKNOWN)
_UNPRINTED = (TokenKind.UNUSED, TokenKind.UNDEFINED)


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of the byte-level alphabet.

    Source: GPT-2's encoder: printable Latin-1 bytes stand for themselves, the rest from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in printable]
    alphabet = {chr(value): value for value in printable}
    return alphabet | {chr(0x100 + place): value for place, value in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_alphabet()


class Tokenizer:
    """Text to token ids and back, for one model. Safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._special = SpecialTokens(vocabulary)
        self._encoder: TextEncoder
        adds_bos = vocabulary.adds_bos
        if vocabulary.model == "llama":
            self._encoder = SpmEncoder(vocabulary)
            self.adds_bos = adds_bos is not False
        else:
            splitter = find_splitter(vocabulary.pre)
            self._encoder = BpeEncoder(vocabulary, splitter)
            self.adds_bos = splitter.adds_bos if adds_bos is None else adds_bos
        self._before = [self._required("bos")] if self.adds_bos else []
        self._behind = [self._required("eos")] if vocabulary.adds_eos else []

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Make the tokenizer that a GGUF file's metadata describes.

        Raises: UnsupportedModelError for an unknown tokenizer model or pre-tokenizer, with the known
        ones; ModelFileError for a key that is missing, malformed or out of range.
        """
        return cls(Vocabulary.from_metadata(metadata))

    @staticmethod
    def check(metadata: Mapping[str, Any]) -> None:
        """Say early what `from_metadata` will not take: raises UnsupportedModelError as it does, and reads two keys."""
        model, pre = read_kind(metadata)
        if model != "llama":
            find_splitter(pre)

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self._vocabulary.texts)

    @property
    def model(self) -> str:
        """The kind of tokenizer, as `tokenizer.ggml.model` names it."""
        return self._vocabulary.model

    @property
    def pre(self) -> str:
        """The pre-tokenizer, as `tokenizer.ggml.pre` names it."""
        return self._vocabulary.pre

    @property
    def bos_id(self) -> int | None:
        """The begin token, if the model has one."""
        return self._vocabulary.special_ids.get("bos")

    @property
    def eos_id(self) -> int | None:
        """The end token, if the model has one."""
        return self._vocabulary.special_ids.get("eos")

    @property
    def end_ids(self) -> frozenset[int]:
        """All tokens that end a generation."""
        return self._vocabulary.end_ids

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return the token ids of `text`.

        `add_special` adds the begin and end tokens that the model asks for. `parse_special` reads
        control tokens spelled in the text as such; switch it off for text of untrusted origin.
        Lone surrogates, which no UTF-8 text holds, count as U+FFFD.
        """
        text = _SURROGATE.sub("\ufffd", text)
        tokens = list(self._before) if add_special else []
        after_special = True
        for part in self._special.partition(text, parse_special=parse_special):
            if isinstance(part, int):
                tokens.append(part)
            else:
                prefix = " " if self._vocabulary.adds_space_prefix and after_special else ""
                tokens += self._encoder.encode(prefix + part)
            after_special = isinstance(part, int)
        return tokens + self._behind if add_special else tokens

    def decode(self, tokens: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of `tokens`, taken as a whole text; bytes that are not UTF-8 become U+FFFD.

        The one space that an SPM model puts before every text is taken off again. Text that continues
        another keeps its first space: use StreamDecoder for that.
        """
        data = b"".join(self.token_bytes(token, special=not skip_special) for token in tokens)
        if self._vocabulary.adds_space_prefix:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes that a token stands for; control tokens are empty unless `special`.

        Raises: ConfigError for an id outside the vocabulary.
        """
        text, kind = self.token_text(token), self._vocabulary.kinds[token]
        if kind in _UNPRINTED or (kind in _HIDDEN and not special):
            return b""
        if kind == TokenKind.BYTE:
            return bytes([int(text[3:5], 16)])
        if kind != TokenKind.NORMAL:
            return text.encode()
        if self.model == "llama":
            return text.replace("\u2581", " ").encode()
        return b"".join(
            bytes([_BYTE_OF_CHARACTER[char]]) if char in _BYTE_OF_CHARACTER else char.encode() for char in text
        )

    def token_text(self, token: int) -> str:
        """Return a token as the vocabulary spells it.

        Raises: ConfigError for an id outside the vocabulary.
        """
        if not 0 <= token < self.n_vocab:
            raise ConfigError(f"token {token} is outside the vocabulary of {self.n_vocab} tokens")
        return self._vocabulary.texts[token]

    def _required(self, name: str) -> int:
        token = self._vocabulary.special_ids.get(name)
        if token is None:
            raise ModelFileError(f"the model adds a {name} token but {PREFIX}{name}_token_id is missing")
        return token


class StreamDecoder:
    """Turns tokens into text as they come, holding back bytes that are not yet a whole character."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._special = not skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """Take one token and return the text that is now certain, maybe empty."""
        return self._utf8.decode(self._tokenizer.token_bytes(token, special=self._special))

    def finish(self) -> str:
        """Return what was held back, as U+FFFD if it is no whole character, and start anew."""
        return self._utf8.decode(b"", final=True)
