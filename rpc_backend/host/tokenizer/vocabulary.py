"""The vocabulary of a model, read from GGUF metadata and checked.

Belongs here: every `tokenizer.ggml.*` key this project reads, their defaults, which tokens are special
and which end a generation. Must not be here: splitting or merging text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from rpc_backend.errors import ModelFileError, UnsupportedModelError

PREFIX = "tokenizer.ggml."
MODELS = {"gpt2": "byte-level BPE", "llama": "SPM"}
DEFAULT_PRE = "default"


class TokenKind(IntEnum):
    """What a token is, numbered as `tokenizer.ggml.token_type` numbers it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Files often mark these wrongly as normal tokens. Their text alone makes them control tokens.
# fmt: off
_END_TEXTS = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
    # padding, repository and file marks of infilling models: no text comes after them
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
))
_INFILL_TEXTS = frozenset((
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
    "<|code_prefix|>", "<|prefix|>",
    "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
    "<|code_suffix|>", "<|suffix|>",
    "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
    "<|code_middle|>", "<|middle|>",
))
# fmt: on
_BYTE_TEXT = re.compile("<0x[0-9A-F]{2}>")
_END_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_OTHER_ID_KEYS = ("bos", "unknown", "padding")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All tokens of a model and what its tokenizer needs to know about them.

    `merges` is empty for SPM, `scores` for BPE. `adds_bos` is None where the metadata does not say.
    """

    model: str
    pre: str
    texts: Sequence[str]
    kinds: Sequence[int]
    ids: Mapping[str, int]
    scores: Sequence[float]
    merges: Sequence[tuple[str, str]]
    special_ids: Mapping[str, int]
    end_ids: frozenset[int]
    adds_bos: bool | None
    adds_eos: bool
    adds_space_prefix: bool

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Vocabulary:
        """Read and check the tokenizer keys of a GGUF file.

        Raises: UnsupportedModelError for an unknown tokenizer model; ModelFileError for anything
        missing, of the wrong kind, doubled or out of range, naming the key.
        """
        keys = _Keys(metadata)
        model, pre = read_kind(metadata)
        is_spm = model == "llama"
        texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(keys.strings("tokens"))]
        ids = _index(texts)
        special_ids = _special_ids(keys, len(texts), is_spm)
        return cls(
            model=model,
            pre=pre,
            texts=texts,
            kinds=_kinds(keys, ids),
            ids=ids,
            scores=keys.numbers("scores", len(texts)) if is_spm else (),
            merges=() if is_spm else _merges(keys),
            special_ids=special_ids,
            end_ids=_end_ids(special_ids, ids),
            adds_bos=keys.flag("add_bos_token"),
            adds_eos=bool(keys.flag("add_eos_token")),
            adds_space_prefix=is_spm and keys.flag("add_space_prefix") is not False,
        )


def read_kind(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return the tokenizer model and the pre-tokenizer of a GGUF file. Raises as `Vocabulary.from_metadata`."""
    keys = _Keys(metadata)
    model = keys.text("model")
    if model not in MODELS:
        known = ", ".join(f"{name} ({meaning})" for name, meaning in MODELS.items())
        raise UnsupportedModelError(f"{PREFIX}model is {model!r}, which is not known here; known: {known}")
    return model, DEFAULT_PRE if model == "llama" else keys.text("pre", DEFAULT_PRE) or DEFAULT_PRE


class _Keys:
    """Typed reads of the `tokenizer.ggml.*` keys; every complaint names the key."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def value(self, name: str) -> Any:
        return self._metadata.get(PREFIX + name)

    def text(self, name: str, default: str | None = None) -> str:
        value = self.value(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise ModelFileError(f"{PREFIX}{name} {_complaint(value, 'a string')}")
        return value

    def strings(self, name: str) -> list[str]:
        value = self.value(name)
        if not _is_list(value) or not all(isinstance(item, str) for item in value) or not len(value):
            raise ModelFileError(f"{PREFIX}{name} {_complaint(value, 'a list of strings, not empty')}")
        return list(value)

    def numbers(self, name: str, n_wanted: int) -> list[float]:
        value = self.value(name)
        if not _is_list(value) or not all(isinstance(item, (int, float)) for item in value):
            raise ModelFileError(f"{PREFIX}{name} {_complaint(value, 'a list of numbers')}")
        if len(value) < n_wanted:
            raise ModelFileError(f"{PREFIX}{name} has {len(value)} entries for {n_wanted} tokens")
        return list(value)

    def flag(self, name: str) -> bool | None:
        value = self.value(name)
        if value is not None and not isinstance(value, bool):
            raise ModelFileError(f"{PREFIX}{name} {_complaint(value, 'true or false')}")
        return value

    def token_id(self, name: str, n_vocab: int) -> int | None:
        value = self.value(f"{name}_token_id")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n_vocab:
            raise ModelFileError(f"{PREFIX}{name}_token_id is {value!r}, outside the vocabulary of {n_vocab} tokens")
        return value


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _complaint(value: Any, wanted: str) -> str:
    return f"is missing; it must be {wanted}" if value is None else f"must be {wanted}"


def _index(texts: Sequence[str]) -> dict[str, int]:
    ids = {text: index for index, text in enumerate(texts)}
    if len(ids) != len(texts):
        doubled = next(text for index, text in enumerate(texts) if ids[text] != index)
        raise ModelFileError(f"{PREFIX}tokens has the token {doubled!r} more than once")
    return ids


def _kinds(keys: _Keys, ids: Mapping[str, int]) -> list[int]:
    if keys.value("token_type") is None:
        kinds = [int(TokenKind.NORMAL)] * len(ids)
    else:
        kinds = [int(kind) for kind in keys.numbers("token_type", len(ids))]
    for text, kind in zip(ids, kinds, strict=False):
        if kind == TokenKind.BYTE and not _BYTE_TEXT.fullmatch(text):
            raise ModelFileError(f"{PREFIX}tokens has the byte token {text!r}, not spelled <0xXX>")
    for text in _END_TEXTS | _INFILL_TEXTS:
        if text in ids:
            kinds[ids[text]] = TokenKind.CONTROL
    return kinds


def _merges(keys: _Keys) -> list[tuple[str, str]]:
    """Return the merge pairs in order of rank; of a doubled pair the first counts."""
    if keys.value("merges") is None:
        raise ModelFileError(f"{PREFIX}merges is missing: a byte-level BPE vocabulary needs its merges")
    pairs: dict[tuple[str, str], None] = {}
    for rank, merge in enumerate(keys.strings("merges")):
        cut = merge.find(" ", 1)  # a part may itself begin with a space
        if cut < 0 or cut == len(merge) - 1:
            raise ModelFileError(f"{PREFIX}merges[{rank}] is {merge!r}, not two parts with a space between")
        pairs[merge[:cut], merge[cut + 1 :]] = None
    return list(pairs)


def _special_ids(keys: _Keys, n_vocab: int, is_spm: bool) -> dict[str, int]:
    found = {name: keys.token_id(name, n_vocab) for name in (*_END_KEYS, *_OTHER_ID_KEYS)}
    if is_spm:  # what SentencePiece itself numbers them when nothing else is said
        for name, usual in (("unknown", 0), ("bos", 1), ("eos", 2)):
            if found[name] is None and usual < n_vocab:
                found[name] = usual
    return {name: token for name, token in found.items() if token is not None}


def _end_ids(special_ids: Mapping[str, int], ids: Mapping[str, int]) -> frozenset[int]:
    by_key = {special_ids[name] for name in _END_KEYS if name in special_ids}
    return frozenset(by_key | {ids[text] for text in _END_TEXTS if text in ids})
