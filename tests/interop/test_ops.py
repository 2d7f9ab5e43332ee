"""Every case of the backend suite on ggml's own CPU kernels: the reference backend must agree with them.

Cases that ggml refuses, or whose memory layout its kernels do not look at, say nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rpc_backend.graph import OPS
from rpc_backend.graph.element_types import QUANTIZED

_TOOL = Path(__file__).resolve().parents[2] / "tools" / "ggml_ops.py"
_LIMIT_S = 600
_FIND = "import llama_cpp, os; print(os.path.join(os.path.dirname(llama_cpp.__file__), 'lib'))"
_ROUNDED = 1e-5
"""ggml rounds the second factor of a product to the type of the first, and works in it: BF16, or F16 in attention."""

_STRIDED = (
    "CLAMP", "LEAKY_RELU", "UNARY", "MEAN", "SUM", "ARGMAX", "ARGSORT", "TOP_K", "ROLL", "IM2COL", "CONV_2D", "POOL_1D",
    "POOL_2D", "CONV_TRANSPOSE_2D", "PAD_REFLECT_1D", "WIN_PART",
)  # fmt: skip
"""Operations whose kernels in ggml take elements of a row to be neighbours, or rows to follow one another, unasked."""

_FREE_ORDER = ("TOP_K", "ARGMAX")
"""ggml gives the largest elements in any order, and of equals the last."""


@pytest.fixture(scope="module")
def answers(llama_python):
    found = subprocess.run([llama_python, "-c", _FIND], capture_output=True, text=True, check=True, timeout=60)
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    command = [sys.executable, str(_TOOL), found.stdout.strip()]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIMIT_S, env=environment)
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


def _limit(answer):
    if answer["measure"] == "exact":
        return 0.0
    half = any(text in answer["id"] for text in ("BF16", "FLASH_ATTN_EXT[F16"))
    floor = 5e-4 if any(kind.name in answer["id"] for kind in QUANTIZED) else _ROUNDED if half else 1e-6
    return max(answer["tolerance"], floor)


def _says_nothing(answer):
    is_grid = answer["op"] in _STRIDED[9:]  # also whole planes are taken to follow one another
    strided = any(layout in answer["id"] for layout in ("permuted", "transposed", *("padded",) * is_grid))
    return (
        (answer["op"] in _STRIDED and strided)
        or answer["op"] in _FREE_ORDER
        or "mask-f32" in answer["id"]  # ggml takes F16 only
        or answer["id"] == "COUNT_EQUAL[I32,40x5x2]"  # ggml reads beside what has a third axis
        or (answer["op"] == "RWKV_WKV7" and "size64" not in answer["id"])  # ggml leaves out what fills no vector
    )


@pytest.mark.timeout(_LIMIT_S)
def test_the_reference_agrees_with_ggml(answers):
    assert [answer for answer in answers if "failed" in answer] == []
    compared = [answer for answer in answers if "error" in answer and not _says_nothing(answer)]
    assert [answer for answer in compared if not answer["error"] <= _limit(answer)] == []
    assert len(compared) > 1000
    assert set(OPS) - {answer["op"] for answer in compared} == set(_FREE_ORDER)


def test_the_largest_elements_are_the_same(answers):
    plain = [answer for answer in answers if answer.get("op") in _FREE_ORDER and ",k1]" in answer["id"]]
    assert plain
    assert all(answer["error"] == 0 for answer in plain if "NaN" not in answer["id"])
