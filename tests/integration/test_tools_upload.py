"""The program that measures uploads, on a tiny model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rpc_backend.testing.gguf_writer import write_tiny_model

TOOL = Path(__file__).resolve().parents[2] / "tools" / "measure_upload.py"


def test_a_round_against_a_plain_socket(tmp_path):
    model = write_tiny_model(tmp_path / "tiny.gguf")
    command = [sys.executable, str(TOOL), "--model", str(model), "--rounds", "1", "--only", "socket", "--only", "llama"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    assert "| upload | " in found.stdout
    assert "| plain socket, into new memory | " in found.stdout
    assert "Peak of memory" in found.stdout
    assert "Not compared with llama.cpp" in found.stdout
