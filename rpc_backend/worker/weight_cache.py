"""What a worker does with a folder of weights: it helps where it can, and a failing folder is one warning.

Belongs here: storing beside the uploads, and what happens when the folder fails. Must not be here: the files
(`cache_folder`), or which weights are asked for (`weights`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rpc_backend.interfaces import Buffer
from rpc_backend.worker.cache_folder import CacheFolder
from rpc_backend.worker.content import Content, content_at
from rpc_backend.worker.peers import Spawn
from rpc_backend.worker.tasks import Place

_LOG = logging.getLogger(__name__)

_MAX_JOBS = 1 << 14
_PAUSE_S = 60.0  # how long nothing is stored after the folder refused something


@dataclass(slots=True, eq=False)
class _Job:
    """A weight to be stored from where it lies; `abandoned` once it should not be."""

    content: Content
    place: Place
    abandoned: bool = False


class WeightCache:
    """The entries of a folder, for one worker. Any thread may call it; only a device that fails makes it raise.

    What is stored is read again from its final place on a thread of its own, so the queue holds no bytes and an upload
    never waits for the disk; what changed since it came is not stored, as its digest is wrong. A buffer that a client
    frees before all of it is stored stays until then, unless its memory is needed.
    """

    def __init__(
        self,
        folder: CacheFolder,
        limit_nbytes: int | None,
        spawn: Spawn,
        *,
        on_stored: Callable[[int], None] = lambda nbytes: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use a folder up to a limit; `on_stored` is told the size of each new entry."""
        self._folder = folder
        self._limit_nbytes = limit_nbytes
        self._spawn = spawn
        self._on_stored = on_stored
        self._clock = clock
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._running: _Job | None = None
        self._to_close: list[tuple[Buffer, Callable[[], None]]] = []
        self._has_thread = False
        self._closed = False
        self._load_failed = False
        self._store_failed = False
        self._pause_until_s = 0.0

    def open(self) -> bool:
        """Make the folder, remove what writers left that died and what is above the limit; False = it is of no use."""
        try:
            self._folder.create()
            self._folder.sweep()
            if self._limit_nbytes is not None:
                self._folder.prune(self._limit_nbytes)
            n_entries = len(self._folder.entries())
        except OSError as error:
            _LOG.warning("the weight cache %s cannot be used, weights are not cached: %s", self._folder.path, error)
            return False
        return (self._can_write() or n_entries > 0) and self._limit_nbytes != 0

    def load(self, content: Content, place: Place) -> bool:
        """Copy a weight to its place; False = it is not here. Bytes that were not checked do not stay there."""
        try:
            found = self._folder.load(content, place)
        except OSError as error:
            if not self._load_failed:
                _LOG.warning("the weight cache %s cannot be read: %s", self._folder.path, error)
            self._load_failed = True
            return False
        if found:
            self._load_failed = False
        return found

    def store(self, content: Content, place: Place) -> None:
        """Have a weight stored from where it lies, soon; one that comes by a name alone, under the digest it has."""
        with self._changed:
            if self._closed or self._clock() < self._pause_until_s or len(self._jobs) >= _MAX_JOBS:
                return
            self._jobs.append(_Job(content, place))
            must_start, self._has_thread = not self._has_thread, True
        if must_start:
            self._spawn("weight cache", self._work)

    def when_stored(self, buffer: Buffer, close: Callable[[], None]) -> None:
        """Have a buffer closed once nothing of it is to be stored any more: now, or on the thread that stores."""
        with self._changed:
            if self._is_pending(buffer):
                self._to_close.append((buffer, close))
                return
        close()

    def give_up(self) -> bool:
        """Close the buffers that only wait to be stored, at once; False = there were none."""
        with self._changed:
            given_up, self._to_close = self._to_close, []
            buffers = {buffer for buffer, _ in given_up}
            self._jobs = deque(job for job in self._jobs if job.place.buffer not in buffers)
            if self._running is not None and self._running.place.buffer in buffers:
                self._running.abandoned = True
        if given_up:
            _LOG.warning("memory is needed: %d buffers were freed before all of them was cached", len(given_up))
        _close_all(given_up)
        return bool(given_up)

    def close(self, timeout_s: float) -> None:
        """Store what waits if `timeout_s` is enough, and nothing after that."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs and self._running is None, timeout_s)
            self._closed = True
            self._jobs.clear()
            if self._running is not None:
                self._running.abandoned = True
            # The temporary file of the one that runs goes with it.
            self._changed.wait_for(lambda: self._running is None, timeout_s)
            left, self._to_close = self._to_close, []
        _close_all(left)

    def _can_write(self) -> bool:
        try:
            self._folder.probe()
        except OSError as error:
            self._warn_not_stored(error)
            self._pause_until_s = self._clock() + _PAUSE_S
            return False
        return True

    def _is_pending(self, buffer: Buffer) -> bool:
        running = self._running
        is_running = running is not None and not running.abandoned and running.place.buffer is buffer
        return is_running or any(job.place.buffer is buffer for job in self._jobs)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._store(job)
            del job  # its buffer must not live until the next one comes

    def _next(self) -> _Job | None:
        with self._changed:
            self._running = None
            stored = [(buffer, close) for buffer, close in self._to_close if not self._is_pending(buffer)]
            self._to_close = [(buffer, close) for buffer, close in self._to_close if self._is_pending(buffer)]
            self._running = job = self._jobs.popleft() if self._jobs else None
            self._has_thread = job is not None
            self._changed.notify_all()
        _close_all(stored)
        return job

    def _store(self, job: _Job) -> None:
        try:
            content = content_at(job.place) if job.content.is_named else job.content
            stored = self._folder.store(
                content, job.place, limit_nbytes=self._limit_nbytes, is_stopped=lambda: job.abandoned
            )
        except OSError as error:
            self._pause(error)
        except Exception as error:  # the buffer was closed, or its device raised something of its own
            _LOG.debug("%s is not cached: %s: %s", job.content, type(error).__name__, error)
        else:
            if stored:
                self._store_failed = False
                self._on_stored(job.content.nbytes)

    def _pause(self, error: OSError) -> None:
        self._warn_not_stored(error)
        with self._changed:
            self._pause_until_s = self._clock() + _PAUSE_S
            self._jobs.clear()

    def _warn_not_stored(self, error: OSError) -> None:
        if not self._store_failed:
            _LOG.warning("weights are not cached for now, %s cannot be written: %s", self._folder.path, error)
        self._store_failed = True


def _close_all(buffers: Iterable[tuple[Buffer, Callable[[], None]]]) -> None:
    for _, close in buffers:
        try:
            close()
        except Exception:
            _LOG.exception("closing a buffer failed")
