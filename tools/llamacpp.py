"""llama.cpp as processes of its own, in the interpreter that has it.

Belongs here: starting, asking and ending `llamacpp_driver.py`. Must not be here: calls into llama.cpp.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

DRIVER = Path(__file__).resolve().parent / "llamacpp_driver.py"
_START_LIMIT_S = 60.0
_END_LIMIT_S = 5.0
_POLL_S = 0.05
_MAX_ERROR_CHARACTERS = 1500


class LlamaCppError(Exception):
    """llama.cpp could not be started, did not answer in time, or refused."""


class LlamaProcess:
    """One process of the driver; it ends with this object and with this process."""

    def __init__(self, python: str, *arguments: str) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        try:
            self._process = subprocess.Popen(
                [python, str(DRIVER), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
            )
        except OSError as error:
            self._stderr.close()
            raise LlamaCppError(f"{python} cannot be run: {error.strerror or error}") from error
        self._reader = threading.Thread(target=self._read, name="llama.cpp", daemon=True)
        self._reader.start()

    def ask(self, limit_s: float, **request: Any) -> dict[str, Any]:
        """Send a request of the driver's `talk` and return its answer.

        Raises:
            LlamaCppError: it failed there, the process ended, or `limit_s` passed; the process is of no more use.
        """
        assert self._process.stdin is not None, "the process was started with a pipe"
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=limit_s)
        except queue.Empty as error:
            self._process.kill()
            raise LlamaCppError(f"llama.cpp did not {request['do']} within {limit_s:.0f} s") from error
        except BrokenPipeError:
            line = ""
        if not line:
            raise LlamaCppError(f"llama.cpp ended: {self._errors()}")
        answer = json.loads(line)
        if "error" in answer:
            raise LlamaCppError(f"llama.cpp: {answer['error']}: {self._errors()}")
        return answer

    def wait_listening(self, port: int) -> None:
        """Return when the driver's `serve` accepts connections on `port`. Raises LlamaCppError if it does not."""
        deadline_s = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise LlamaCppError(f"llama.cpp's server ended: {self._errors()}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                return
            time.sleep(_POLL_S)
        raise LlamaCppError(f"llama.cpp's server did not listen within {_START_LIMIT_S:.0f} s: {self._errors()}")

    def kill(self) -> None:
        """End the process at once, as `kill -9` does; `close` is still due."""
        self._process.kill()

    def close(self) -> None:
        """End the process: by the end of its input, then by force."""
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None, "the process was started with a pipe"
            self._process.stdin.close()
        try:
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None, "the process was started with a pipe"
        self._process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> LlamaProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None, "the process was started with a pipe"
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _errors(self) -> str:
        self._stderr.seek(0)
        text = self._stderr.read().decode(errors="replace").strip()
        return text[-_MAX_ERROR_CHARACTERS:] or "it wrote nothing to standard error"


def call(python: str, do: str, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """Start the driver for one request. Raises as `LlamaProcess.ask`."""
    with LlamaProcess(python, "talk") as process:
        return process.ask(limit_s, do=do, **request)


@contextlib.contextmanager
def servers(python: str, count: int, threads: int) -> Iterator[list[str]]:
    """Run ggml-rpc servers and give their endpoints. Raises LlamaCppError if one does not start."""
    with ExitStack() as stack:
        endpoints: list[str] = []
        started: list[tuple[LlamaProcess, int]] = []
        for _ in range(count):
            port = _free_port()
            endpoints.append(f"127.0.0.1:{port}")
            process = stack.enter_context(LlamaProcess(python, "serve", endpoints[-1], str(threads)))
            started.append((process, port))
        for process, port in started:
            process.wait_listening(port)
        yield endpoints


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
