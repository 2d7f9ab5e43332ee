"""The writer of tiny models: equal arguments, equal files; everything it writes loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpc_backend.errors import ConfigError
from rpc_backend.models import ARCHITECTURES, GgufFile, load_model
from rpc_backend.testing.gguf_writer import WRITABLE_TYPES, byte_characters, write_tiny_model


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
@pytest.mark.parametrize("type", WRITABLE_TYPES)
def test_every_architecture_and_type_loads(tmp_path: Path, architecture: str, type: str) -> None:
    model = load_model(GgufFile.open(write_tiny_model(tmp_path / "m.gguf", architecture, type, n_layer=1)))
    assert (model.hparams.architecture, model.hparams.n_vocab) == (architecture, 261)


def test_the_seed_decides(tmp_path: Path) -> None:
    first = write_tiny_model(tmp_path / "a.gguf", seed=1).read_bytes()
    assert first == write_tiny_model(tmp_path / "b.gguf", seed=1).read_bytes()
    assert first != write_tiny_model(tmp_path / "c.gguf", seed=2).read_bytes()


def test_bytes_have_distinct_printable_characters() -> None:
    characters = byte_characters()
    assert len(set(characters)) == 256
    assert characters[ord("a")] == "a"
    assert characters[ord(" ")] == "Ġ"
    assert all(character.isprintable() and not character.isspace() for character in characters)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write mamba in F32; architectures: llama"):
        write_tiny_model(tmp_path / "m.gguf", "mamba")
    with pytest.raises(ConfigError, match=r"cannot write llama in Q4_K; .*types: F32"):
        write_tiny_model(tmp_path / "m.gguf", type="Q4_K")
