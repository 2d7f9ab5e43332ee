"""Worker processes on this machine that live as long as their user.

Belongs here: starting, watching and ending them. Must not be here: connecting to them (`devices`).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO

from rpc_backend.errors import ConnectError, PluginLoadError
from rpc_backend.load_profile import PREFIX
from rpc_backend.protocol.endpoint import Endpoint, parse_endpoint
from rpc_backend.settings import Settings, as_environment, child_environment

READY = "ready "
_START_TIMEOUT_S = 120.0  # the first start of a backend may compile its kernels
_STOP_TIMEOUT_S = 3.0
_POLL_S = 0.02
_MAX_ERROR_CHARACTERS = 2000


class LocalWorker:
    """One worker process. It ends itself when this process is gone: its standard input closes then."""

    def __init__(self, number: int, command: Sequence[str], environment: dict[str, str]) -> None:
        self.number = number
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self._lines: list[str] = []
        # A group of its own: Ctrl-C in the terminal is for the user of the workers, who then ends them.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read, name=f"local-worker-{number}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_ready(self, deadline_s: float) -> Endpoint:
        """Return the endpoint once it serves; `deadline_s` is a time of `time.monotonic`.

        Raises:
            PluginLoadError: the process ended; the message has what it wrote to standard error.
            ConnectError: it did not serve in time.
        """
        while time.monotonic() < deadline_s:
            ready = next((line for line in self._lines if line.startswith(READY)), None)
            if ready is not None:
                return parse_endpoint(ready.removeprefix(READY))
            if self.process.poll() is not None and not self._reader.is_alive():
                raise PluginLoadError(
                    f"local worker {self.number} ended with code {self.process.returncode}: {self._errors()}"
                )
            time.sleep(_POLL_S)
        raise ConnectError(f"local worker {self.number} did not serve in time: {self._errors()}")

    def terminate(self) -> None:
        """Ask it to end."""
        with contextlib.suppress(OSError):
            self.process.terminate()

    def close(self, timeout_s: float) -> None:
        """Wait for its end; kill it after `timeout_s`. A second call does nothing."""
        if self._stderr.closed:
            return
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        with contextlib.suppress(BrokenPipeError):
            self.process.__exit__(None, None, None)
        self._pass_profiles_on()
        self._stderr.close()

    def _read(self) -> None:
        assert self.process.stdout is not None, "the process was started with a pipe"
        for line in self.process.stdout:
            self._lines.append(line.decode(errors="replace").rstrip("\r\n"))

    def _pass_profiles_on(self) -> None:
        """Print what the worker noted of loads, which its user asked for."""
        sys.stderr.writelines(line for line in self._written().splitlines(True) if line.startswith(PREFIX))

    def _errors(self) -> str:
        return self._written().strip()[-_MAX_ERROR_CHARACTERS:] or "it wrote nothing to standard error"

    def _written(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")


class LocalWorkers:
    """Workers of this process; as a context manager they end with it."""

    def __init__(self, workers: Sequence[LocalWorker], endpoints: Sequence[Endpoint]) -> None:
        """Take over running workers; `start` makes them."""
        self.workers = list(workers)
        self.endpoints = list(endpoints)

    @classmethod
    def start(
        cls,
        count: int,
        *,
        backend: str = "numba",
        threads: int = 1,
        memory: str | None = None,
        settings: Settings | None = None,
        options: Sequence[str] = (),
        timeout_s: float = _START_TIMEOUT_S,
    ) -> LocalWorkers:
        """Start `count` workers side by side and return when all of them serve.

        `memory` is the cap per device as `--mem` takes it, `options` are further options of the worker command,
        `settings` become the environment of the workers.

        Raises:
            PluginLoadError, ConnectError: one did not start; none is left running.
        """
        command = [sys.executable, "-m", "rpc_backend.cli.worker", "--listen", "tcp://127.0.0.1:0"]
        command += ["--device", backend, "--threads", str(threads), "--exit-on-stdin-close"]
        command += [] if memory is None else ["--mem", memory]
        environment = child_environment({} if settings is None else as_environment(settings))
        workers: list[LocalWorker] = []
        deadline_s = time.monotonic() + timeout_s
        try:
            for number in range(count):
                workers.append(LocalWorker(number, [*command, *options], environment))
            return cls(workers, [worker.wait_ready(deadline_s) for worker in workers])
        except BaseException:
            _close_all(workers)
            raise

    def close(self) -> None:
        """End all of them: politely, then by force. A second call does nothing."""
        _close_all(self.workers)

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close_all(workers: Sequence[LocalWorker]) -> None:
    for worker in workers:
        worker.terminate()
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    for worker in workers:
        worker.close(max(0.0, deadline_s - time.monotonic()))
