"""The table of pre-tokenizers: how a text is split before byte-pair merging.

Belongs here: one row per splitting rule, the `tokenizer.ggml.pre` names that mean it. Must not be
here: merging, special tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpc_backend.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class Splitter:
    """One way to split text; every pattern in turn splits the pieces left by the one before.

    `takes_whole_words`: a piece that is a token itself is taken as it is, without merging.
    `adds_bos`: whether a begin token is added where the metadata does not say.
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    takes_whole_words: bool = False
    adds_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# Source: the published tokenizer.json files of these model families; llama.cpp gives each its name.
SPLITTERS = (
    Splitter(
        names=("default",),
        patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    ),
    Splitter(
        names=("gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4", "a.x-4.0", "mellum", "trillion"),
        patterns=(_GPT2,),
    ),
    Splitter(
        names=("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        patterns=(r"\p{N}", _GPT2),
    ),
    Splitter(
        names=("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0", "lfm2"),
        patterns=(_LLAMA3 % r"\p{N}{1,3}",),
        takes_whole_words=True,
        adds_bos=True,
    ),
    Splitter(names=("dbrx", "smaug-bpe"), patterns=(_LLAMA3 % r"\p{N}{1,3}",)),
    Splitter(
        names=("qwen2", "deepseek-r1-qwen", "stablelm2", "kormo"),
        patterns=(_LLAMA3 % r"\p{N}",),
    ),
)

_BY_NAME = {name: splitter for splitter in SPLITTERS for name in splitter.names}


def find_splitter(name: str) -> Splitter:
    """Return the splitter of a `tokenizer.ggml.pre` name.

    Raises: UnsupportedModelError naming the unknown one and all known ones.
    """
    if name not in _BY_NAME:
        known = ", ".join(sorted(_BY_NAME))
        raise UnsupportedModelError(f"tokenizer.ggml.pre is {name!r}, which is not known here; known: {known}")
    return _BY_NAME[name]
