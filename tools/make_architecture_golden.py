"""Record what llama.cpp answers for a tiny model of each architecture: tests/data/architectures/NAME.golden.json.

Belongs here: the recording. Must not be here: comparing (tests/e2e), or making models (`rpc_backend.testing`).

Usage: python tools/make_architecture_golden.py --llama-python PYTHON [NAME…]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llamacpp import LlamaProcess
from rpc_backend.host.sampling import log_probabilities
from rpc_backend.models import ARCHITECTURES
from rpc_backend.testing.gguf_writer import write_tiny_model

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "architectures"
N_CTX = 256
_SEED, _N_PROMPT, _N_FORCED = 11, 45, 5
_LIMIT_S = 120.0


def tokens() -> tuple[list[int], list[int]]:
    """Return the prompt, longer than any window, and the tokens forced after it: bytes, the same for all models."""
    draw = random.Random(_SEED)
    return tuple([draw.randrange(256) for _ in range(count)] for count in (_N_PROMPT, _N_FORCED))  # type: ignore[return-value]


def ask(python: str, model: Path, *, flash: bool) -> list[list[float]]:
    """Return llama.cpp's log-probabilities before each forced token, rounded."""
    prompt, forced = tokens()
    with LlamaProcess(python, "talk") as process:
        process.ask(_LIMIT_S, do="load", model=str(model), threads=1)
        rows = process.ask(_LIMIT_S, do="logits", tokens=prompt, then=forced, flash=flash)["rows"]
    return np.round(log_probabilities(np.array(rows, np.float32)).astype(float), 4).tolist()


def case(rows: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return a case in the form of `rpc_backend.testing.golden`."""
    prompt, forced = tokens()
    return {"prompt_tokens": prompt, "forced_tokens": forced, "steps": [{"logprobs": row} for row in rows]}


def main() -> int:
    """Record the named architectures, or all; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-python", required=True, help="an interpreter that has llama-cpp-python")
    parser.add_argument("names", nargs="*", default=list(ARCHITECTURES))
    options = parser.parse_args()
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names:
            model = write_tiny_model(Path(folder) / f"{name}.gguf", name, n_ctx=N_CTX)
            rows = ask(options.llama_python, model, flash=False)
            path = DATA / f"{name}.golden.json"
            path.write_text(json.dumps([case(rows)]) + "\n", encoding="utf-8")
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
