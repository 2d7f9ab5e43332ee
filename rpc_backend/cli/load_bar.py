"""The progress of a load, on the terminal.

Belongs here: what is shown while a model loads. Must not be here: loading.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import TransferSpeedColumn as RateColumn

from rpc_backend.host import LoadProgress

_STAGES = {
    "start": "starting workers",
    "plan": "planning",
    "upload": "uploading weights",
    "compile": "compiling kernels (kept for later runs)",
}
_COMPILE = "compile"
_WORTH_TELLING_S = 2.0


class LoadBar:
    """Shows stage, bytes and rate on stderr if that is a terminal; says how long compiling took if it was long.

    Call it with each LoadProgress, from any thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stage = ""
        self._stage_started = 0.0
        self._notice = _notice()
        self._progress: Progress | None = None
        if sys.stderr.isatty():
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(True))
            console = Console(stderr=True)
            self._progress = Progress(*columns, RateColumn(), TimeElapsedColumn(), console=console, transient=True)
            self._task = self._progress.add_task("loading", total=None)

    def __call__(self, progress: LoadProgress) -> None:
        if progress.stage != self._stage:
            self._enter_stage(progress.stage)
        if self._progress is not None:
            description = _STAGES.get(progress.stage, progress.stage)
            total = progress.total_nbytes or None
            self._progress.update(self._task, description=description, completed=progress.done_nbytes, total=total)

    def __enter__(self) -> LoadBar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._notice.cancel()
        if self._progress is not None:
            self._progress.stop()

    def _enter_stage(self, stage: str) -> None:
        now = self._clock()
        seconds = now - self._stage_started
        self._notice.cancel()
        if self._stage == _COMPILE and seconds > _WORTH_TELLING_S:
            click.echo(f"compiled kernels in {seconds:.1f} s; later runs find them in the cache", err=True)
        if stage == _COMPILE and self._progress is None:
            self._notice = _notice()
            self._notice.start()
        self._stage, self._stage_started = stage, now


def _notice() -> threading.Timer:
    """Return what tells, where there is no bar, that kernels are being compiled, once that has taken a while."""
    timer = threading.Timer(_WORTH_TELLING_S, click.echo, ("compiling kernels, once for this machine",), {"err": True})
    timer.daemon = True
    return timer
