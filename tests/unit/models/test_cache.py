"""The KV cache: shapes, sizes, and the window attention reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpc_backend.errors import ConfigError
from rpc_backend.graph import build
from rpc_backend.graph.element_types import F16, F32, I64, Q4_0, Q8_0
from rpc_backend.models import GgufFile, Hyperparameters, cache_spec, load_model
from rpc_backend.models.cache import flat, window
from rpc_backend.testing.gguf_writer import write_tiny_model


@pytest.fixture
def hparams(tmp_path: Path) -> Hyperparameters:
    return load_model(GgufFile.open(write_tiny_model(tmp_path / "m.gguf", n_layer=3, head=16))).hparams


def test_one_pair_per_layer(hparams: Hyperparameters) -> None:
    cache = cache_spec(hparams, 128, 4)
    assert [layer.k.name for layer in cache] == ["cache_k-0", "cache_k-1", "cache_k-2"]
    assert {(layer.k.ne, layer.v.ne, layer.k.type) for layer in cache} == {((32, 128, 4, 1), (32, 128, 4, 1), F16)}
    assert (cache[0].n_ctx_seq, cache[0].n_seq, cache[0].nbytes) == (128, 4, 2 * 32 * 128 * 4 * 2)
    assert cache_spec(hparams, 128, 4, F32)[0].nbytes == 2 * cache[0].nbytes


def test_bad_sizes_and_types_are_refused(hparams: Hyperparameters) -> None:
    for n_ctx_seq, n_seq in ((0, 1), (1, 0), (-5, 1)):
        with pytest.raises(ConfigError, match="is empty"):
            cache_spec(hparams, n_ctx_seq, n_seq)
    with pytest.raises(ConfigError, match="keys of type Q4_0; supported: F16, F32, BF16, Q8_0"):
        cache_spec(hparams, 16, 1, Q4_0)
    with pytest.raises(ConfigError, match=r"values of type Q8_0 come in blocks of 32, .* heads have 16"):
        cache_spec(hparams, 16, 1, F16, Q8_0)


def test_keys_and_values_may_be_of_different_types(tmp_path: Path) -> None:
    wide = load_model(GgufFile.open(write_tiny_model(tmp_path / "m.gguf", head=32))).hparams
    mixed = cache_spec(wide, 128, 1, Q8_0, F16)[0]
    assert (mixed.k.type, mixed.v.type) == (Q8_0, F16)
    assert mixed.k.nbytes * 64 == mixed.v.nbytes * 34


def test_the_window_lies_on_the_chosen_sequences(hparams: Hyperparameters) -> None:
    layer = cache_spec(hparams, 128, 4)[0]
    rows = build.leaf(F32, (32, 2))
    stored = build.set_rows(flat(layer.k), rows, build.leaf(I64, (2,)))
    seen = window(stored, layer, 16, first_seq=2, n_seqs=2, n_kv=32)
    assert seen.ne == (16, 32, 2, 2)
    assert seen.nb == (2, 64, 32, 64 * 128)
    assert seen.view_offs == 2 * 128 * 64
    assert seen.view_src is layer.k
    assert seen.sources[0].sources[0] is stored
