"""What a worker's process holds once a model is loaded and has run: resident memory against what it must hold.

Belongs here: starting that worker, and asking the system. Must not be here: printing.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from rpc_backend import settings
from rpc_backend.host import LLM
from rpc_backend.host.bench import measure
from rpc_backend.host.local_workers import LocalWorker

_START_S, _STOP_S = 60.0, 5.0
_SETTLE_S = 1.0  # a worker gives back what it received a load with shortly after it
_CONTEXT, _PROMPT, _STEPS = 512, 128, 4


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes: of the buffers that the host allocated (weights, KV, scratch), and resident after a load and some steps.

    `empty` and `empty_files` are resident before the load, all and those that are pages of files; `files` after it.
    """

    buffers: int
    resident: int
    files: int
    empty: int
    empty_files: int

    @property
    def ratio(self) -> float:
        return self.resident / self.buffers

    @property
    def own_ratio(self) -> float:
        """Without pages of files, which workers of one machine share and the system drops when it needs them."""
        return (self.resident - self.files) / self.buffers


def measure_memory(model: str, threads: int) -> Held:
    """Load a model on a worker of its own, run a prompt and some steps, and look.

    The worker may take half of what the machine has free, so that what is free of that says what the host allocated.
    """
    cap = psutil.virtual_memory().available // 2
    command = [sys.executable, "-m", "rpc_backend.cli.worker", "--listen", "tcp://127.0.0.1:0", "--device", "numba"]
    command += ["--threads", str(threads), "--mem", str(cap), "--exit-on-stdin-close"]
    worker = LocalWorker(0, command, settings.child_environment({}))
    try:
        endpoint = worker.wait_ready(time.monotonic() + _START_S)
        empty, empty_files = _resident(worker.pid)
        with LLM(model, workers=[str(endpoint)], n_ctx=_CONTEXT, ubatch=_PROMPT) as llm:
            measure(llm, _PROMPT, _STEPS, 1)
            time.sleep(_SETTLE_S)
            free, total = llm.devices.devices[0].memory()
            resident, files = _resident(worker.pid)
    finally:
        worker.terminate()
        worker.close(_STOP_S)
    return Held(total - free, resident, files, empty, empty_files)


def _resident(pid: int) -> tuple[int, int]:
    """Return the resident bytes of a process, and how many of them are pages of files."""
    text = Path(f"/proc/{pid}/status").read_text()
    nbytes = {name: 1024 * int(count) for name, count in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    return nbytes["VmRSS"], nbytes["RssFile"]
