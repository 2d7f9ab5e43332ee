"""Text to token ids and back, from the metadata of a GGUF file.

Belongs here: reading and checking the vocabulary, the two tokenizer models (byte-level BPE and SPM),
splitting at special tokens, decoding whole and streamed. Must not be here: opening files, chat
templates (`host/chat.py`), anything about devices.

Token ids are meant to equal llama.cpp's for the same metadata. One difference is known: characters
that Unicode added after version 15 are letters or digits to the `tokenizers` package and unassigned
to llama.cpp, so a text with them may be split at other places.
"""

from __future__ import annotations

from rpc_backend.host.tokenizer.tokenizer import StreamDecoder, Tokenizer

__all__ = ["StreamDecoder", "Tokenizer"]
