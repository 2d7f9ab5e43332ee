"""A model after `zmq-rpc-worker --warm`: nothing is left to compile."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from rpc_backend.host import LLM
from rpc_backend.models import ARCHITECTURES
from rpc_backend.testing.gguf_writer import write_tiny_model

library = pytest.importorskip("rpc_backend_numba.library")


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_models_need_only_kernels_that_are_compiled_ahead(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[str] = set()
    addresses = library.KernelLibrary.addresses

    def record(self: object, names: Iterable[str]) -> dict[str, int]:
        wanted = list(names)
        asked.update(wanted)
        return addresses(self, wanted)

    monkeypatch.setattr(library.KernelLibrary, "addresses", record)
    model = write_tiny_model(tmp_path / f"{name}.gguf", name, n_ctx=256)
    with LLM(model, workers="none", device="numba", n_ctx=128, ubatch=16) as llm:
        llm.logits(list(range(3, 23)))
        llm.generate("ab", max_tokens=4)

    assert {"run", "product_rows"} <= asked
    assert asked - set(library.all_kernels()) == set()
