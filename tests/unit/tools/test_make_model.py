from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rpc_backend.errors import ModelFileError
from rpc_backend.host.tokenizer import Tokenizer
from rpc_backend.models import GgufFile, load_model
from rpc_backend.testing.gguf_writer import WRITABLE_TYPES

LLAMA = "llama/bin/python"


@pytest.fixture
def make_model(tool: Callable[[str], ModuleType]) -> ModuleType:
    return tool("make_model")


def write(make_model: ModuleType, out: Path, *arguments: str) -> int:
    return make_model.main([str(out), "--preset", "tiny", *arguments])


@pytest.mark.parametrize("type_name", WRITABLE_TYPES)
def test_matrices_have_the_type_that_was_asked_for(make_model: ModuleType, tmp_path: Path, type_name: str) -> None:
    assert write(make_model, tmp_path / "m.gguf", "--type", type_name) == 0
    file = GgufFile.open(tmp_path / "m.gguf")
    load_model(file)
    assert {tensor.type.name for tensor in file.tensors.values() if len(tensor.ne) > 1} == {type_name}
    assert {tensor.type.name for tensor in file.tensors.values() if len(tensor.ne) == 1} == {"F32"}


def test_the_command_line_changes_the_shape_of_the_preset(make_model: ModuleType, tmp_path: Path) -> None:
    changes = ("--layers", "3", "--mlp", "768", "--kv-heads", "1", "--vocabulary", "300", "--no-tied", "--type", "F16")
    assert write(make_model, tmp_path / "m.gguf", *changes) == 0
    file = GgufFile.open(tmp_path / "m.gguf")
    hparams = load_model(file).hparams
    assert (hparams.n_layer, hparams.n_embd, hparams.n_ff) == (3, 256, 768)
    assert (hparams.n_head, hparams.n_head_kv, hparams.n_vocab) == (4, 1, 300)
    assert file.tensors["output.weight"].ne == (256, 300)


def test_a_tied_model_has_no_output_matrix(make_model: ModuleType, tmp_path: Path) -> None:
    write(make_model, tmp_path / "m.gguf")
    assert "output.weight" not in GgufFile.open(tmp_path / "m.gguf").tensors


def test_the_preset_of_the_measurements_is_the_shape_of_the_baselines(make_model: ModuleType) -> None:
    shape = make_model.PRESETS["1b"]
    matrices = 2 * shape.width**2 + 2 * shape.width * shape.width // 4 + 3 * shape.width * shape.mlp
    assert (shape.layers, shape.heads, shape.kv_heads, shape.tied) == (16, 32, 8, True)
    assert shape.layers * matrices + shape.vocabulary * shape.width == pytest.approx(1.07e9, rel=0.01)


def test_equal_arguments_give_equal_files_however_they_are_cut(
    make_model: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    write(make_model, paths[0])
    monkeypatch.setattr(make_model, "_CHUNK_ELEMENTS", 5000)
    write(make_model, paths[1])
    write(make_model, paths[2], "--seed", "1")
    first, cut, other = (path.read_bytes() for path in paths)
    assert first == cut
    assert first != other


def test_without_the_demo_model_the_vocabulary_is_bytes(
    make_model: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(model: str) -> Path:
        raise ModelFileError(f"{model} is not here")

    monkeypatch.setattr(make_model, "find_model", missing)
    write(make_model, tmp_path / "m.gguf", "--vocabulary", "1000")
    tokenizer = Tokenizer.from_metadata(GgufFile.open(tmp_path / "m.gguf").metadata)
    assert tokenizer.decode(tokenizer.encode("a cab")) == "a cab"


def test_a_vocabulary_of_the_demo_models_size_is_its_own(
    make_model: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(make_model, tmp_path / "demo.gguf", "--vocabulary", "400")
    monkeypatch.setattr(make_model, "find_model", lambda model: tmp_path / "demo.gguf")
    monkeypatch.setattr(make_model, "byte_vocabulary", lambda n=0: {"tokenizer.ggml.tokens": ["x"]})
    write(make_model, tmp_path / "m.gguf", "--vocabulary", "400")
    made, demo = (GgufFile.open(tmp_path / name).metadata for name in ("m.gguf", "demo.gguf"))
    assert made["tokenizer.ggml.tokens"] == demo["tokenizer.ggml.tokens"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--heads", "3"), "width 256 is not 3 heads"),
        (("--kv-heads", "3"), "no multiple of 3 kv heads"),
        (("--layers", "0"), "layers 0 is below 1"),
        (("--vocabulary", "100"), "a vocabulary of 100 tokens is below that of bytes"),
        (("--type", "Q4_K_M"), "type Q4_K_M needs --llama-python"),
        (("--width", "264"), "not a multiple of Q8_0 block size"),
        (("--type", "Q4_K_M", "--llama-python", "/no/python"), "/no/python cannot be run: No such file"),
    ],
)
def test_what_cannot_be_written_is_an_error_and_leaves_no_file(
    make_model: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert write(make_model, tmp_path / "m.gguf", *arguments) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_other_types_are_made_by_llama_cpp_from_f16(
    make_model: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def call(python: str, do: str, request: dict[str, str], limit_s: float) -> dict[str, Any]:
        matrix = GgufFile.open(request["source"]).tensors["token_embd.weight"]
        asked.append((python, do, request["type"], matrix.type.name))
        Path(request["target"]).write_bytes(b"quantized")
        return {}

    monkeypatch.setattr(make_model.llamacpp, "call", call)
    assert write(make_model, tmp_path / "m.gguf", "--type", "Q4_K_M", "--llama-python", LLAMA) == 0
    assert asked == [(LLAMA, "quantize", "Q4_K_M", "F16")]
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
