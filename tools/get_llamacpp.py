#!/usr/bin/env python3
"""Get llama.cpp with its RPC backend: `get_llamacpp.py` prints the interpreter that has it.

Belongs here: building `llama-cpp-python`, once. Must not be here: using it (`llamacpp`).

It is built from its source distribution into `.llamacpp` in the checkout, which takes some minutes and a C++ compiler;
pip keeps the built wheel. `LLAMACPP_PYTHON` names an interpreter that has it already.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "llama-cpp-python==0.3.36"
FOLDER = ROOT / ".llamacpp"
VARIABLE = "LLAMACPP_PYTHON"
_PROBE = "import llama_cpp, os, sys; sys.exit(not os.path.exists(os.path.join(os.path.dirname(llama_cpp.__file__), "
_PROBE += "'lib', 'libggml-rpc.so')))"


class NoLlamaCppError(Exception):
    """llama.cpp with RPC is not here; the message says what would help."""


def find_python() -> Path:
    """Return an interpreter that has llama.cpp with RPC. Raises NoLlamaCppError: there is none yet."""
    named = os.environ.get(VARIABLE)
    python = Path(named) if named else FOLDER / "bin" / "python"
    if not python.exists() or not _has_rpc(python):
        what = f"{python} of {VARIABLE}" if named else "llama.cpp"
        raise NoLlamaCppError(f"{what} is not here with its RPC backend; build it with: python tools/get_llamacpp.py")
    return python


def build() -> Path:
    """Return an interpreter as `find_python` does, after building it where it is missing."""
    try:
        return find_python()
    except NoLlamaCppError:
        if os.environ.get(VARIABLE):
            raise
    venv.EnvBuilder(with_pip=True, clear=True).create(FOLDER)
    python = FOLDER / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--disable-pip-version-check", PACKAGE]
    environment = {**os.environ, "CMAKE_ARGS": "-DGGML_RPC=ON"}
    subprocess.run(install, env=environment, stdout=sys.stderr, check=True)
    if not _has_rpc(python):  # a wheel that pip had kept of a build without it
        subprocess.run(
            [*install, "--no-cache-dir", "--force-reinstall"], env=environment, stdout=sys.stderr, check=True
        )
    return find_python()


def _has_rpc(python: Path) -> bool:
    return subprocess.run([python, "-c", _PROBE], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    try:
        print(build())
    except (NoLlamaCppError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
