"""Commands as a user runs them: real processes, always with a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rpc_backend.testing.gguf_writer import write_tiny_model

START_S = 30
RUN_S = 60


class Command:
    """A running command; `lines` reads its standard output line by line."""

    def __init__(self, module: str, *arguments: str | Path, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def read_line(self) -> str:
        """Return the next line of output; a command that stays silent is killed, and the line is empty."""
        assert self.process.stdout is not None
        timer = threading.Timer(START_S, self.process.kill)
        timer.start()
        try:
            return self.process.stdout.readline()
        finally:
            timer.cancel()

    def ready(self) -> str:
        """Return the endpoint of a worker's ready line."""
        line = self.read_line()
        assert line.startswith("ready "), line + self.finish()[2]
        return line.removeprefix("ready ").strip()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal and return what `finish` does."""
        self.process.send_signal(number)
        return self.finish()

    def finish(self, stdin: str | None = None) -> tuple[int, str, str]:
        """Wait for the end and return exit status, the rest of its output, and its errors."""
        try:
            out, err = self.process.communicate(stdin, timeout=RUN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, out, err


@contextmanager
def _running(module: str, *arguments: str | Path, environment: dict[str, str] | None = None) -> Iterator[Command]:
    command = Command(module, *arguments, environment=environment)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.communicate(timeout=START_S)


@pytest.fixture(scope="session", autouse=True)
def interrupts_count() -> None:
    """Let SIGINT through: a shell starts what runs in its background with it ignored, which children inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def start() -> Iterator[Callable[..., Command]]:
    """A function that starts `zmq-rpc` or `zmq-rpc-worker` (as `main` or `worker`); all end with the test."""
    with ExitStack() as stack:

        def begin(name: str, *arguments: str | Path, environment: dict[str, str] | None = None) -> Command:
            return stack.enter_context(_running(f"rpc_backend.cli.{name}", *arguments, environment=environment))

        yield begin


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, with four layers and a context of 512 tokens."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", n_layer=4)
