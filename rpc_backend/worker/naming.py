"""Giving FNV-1a names to the weights that a worker has in files.

Belongs here: which weights get one, and the thread that reads them. Must not be here: the table of names (`names`).

Only weights above 10 MiB are named, as clients of ggml-rpc ask for no others. They are read once, at some hundred
megabytes per second, on a thread of its own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rpc_backend.worker.cache_folder import CacheFolder
from rpc_backend.worker.content import Content, names_of
from rpc_backend.worker.names import Names
from rpc_backend.worker.peers import Spawn

if TYPE_CHECKING:
    from rpc_backend.worker.model_files import ModelFiles

_LOG = logging.getLogger(__name__)

MIN_NBYTES = (10 << 20) + 1
"""Source: HASH_THRESHOLD of llama.cpp's `ggml-rpc`, which a tensor must exceed."""

_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_Place = tuple[Content, Path, int]


class Namer:
    """Names what is in a cache and in model files. Any thread may call it."""

    def __init__(self, names: Names, spawn: Spawn) -> None:
        self._names = names
        self._spawn = spawn
        self._lock = threading.Lock()
        self._folder: CacheFolder | None = None
        self._models: ModelFiles | None = None
        self._unusable: set[_Place] = set()  # only the naming thread uses it
        self._is_working = False
        self._is_due = False
        self._closed = threading.Event()

    def attach(self, folder: CacheFolder | None, models: ModelFiles | None) -> None:
        """Say where the weights are; before the first `poke`."""
        self._folder = folder
        self._models = models

    def poke(self) -> None:
        """Name what has no name yet, on a thread of its own."""
        with self._lock:
            self._is_due = True
            if self._is_working or self._closed.is_set():
                return
            self._is_working = True
        self._spawn("weight names", self._work)

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()

    def _work(self) -> None:
        while self._must_go_on():
            try:
                self._names.refresh()
                for place in self._places():
                    if self._closed.is_set():
                        break
                    if not self._names.has(place[0]) and place not in self._unusable:
                        self._name(place)
            except OSError as error:  # the folder is gone; whoever stores in it warns
                _LOG.debug("weights get no names: %s", error)
            except Exception:
                _LOG.exception("naming weights for ggml-rpc clients failed")

    def _must_go_on(self) -> bool:
        with self._lock:
            self._is_working = self._is_due and not self._closed.is_set()
            self._is_due = False
            return self._is_working

    def _places(self) -> Iterator[_Place]:
        if self._folder is not None:
            for entry in self._folder.entries():
                if entry.content.nbytes >= MIN_NBYTES:
                    yield entry.content, self._folder.path_of(entry.content), 0
        if self._models is not None:
            for content, path, start in self._models.places():
                if content.nbytes >= MIN_NBYTES:
                    yield content, path, start

    def _name(self, place: _Place) -> None:
        content, path, start = place
        try:
            file = os.open(path, _OPEN_FLAGS)
            try:
                found = names_of(file, start, content.nbytes, is_stopped=self._closed.is_set)
            finally:
                os.close(file)
        except OSError as error:
            _LOG.debug("%s gets no name: %s", path, error)
            return
        if found is not None and found[0] == content.digest:
            self._names.add(found[1], content)
        elif not self._closed.is_set():
            self._unusable.add(place)
