"""Weights from the worker's own model files: content that need not cross the wire.

Belongs here: which GGUF files there are, and finding a digest in them. Must not be here: the index of one file
(`model_index`).

A client names a digest and never a file. Files that appear later are found when a client greets the worker, or asks
for a digest that is not known, but not more than once a second.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rpc_backend.errors import ModelError
from rpc_backend.worker.content import Content, read_content
from rpc_backend.worker.model_index import FileState, ModelIndex, build_index, index_paths, load_index, save_index
from rpc_backend.worker.peers import Spawn
from rpc_backend.worker.tasks import Place

_LOG = logging.getLogger(__name__)

_ENDING = ".gguf"
_SCAN_GAP_S = 1.0
_SETTLED_NS = 10 * 10**9  # a file that changed since is perhaps still being written
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class ModelFiles:
    """The tensors of all GGUF files below some folders, by digest. Any thread may call it."""

    def __init__(
        self,
        folders: Sequence[Path],
        index_folder: Path | None,
        spawn: Spawn,
        *,
        n_threads: int = 4,
        on_scanned: Callable[[], None] = lambda: None,
    ) -> None:
        """Name the folders; an index that cannot be kept beside its file is kept in `index_folder`.

        `on_scanned` is called each time all files were looked at.
        """
        self._folders = [folder.absolute() for folder in folders]
        self._index_folder = index_folder
        self._spawn = spawn
        self._n_threads = n_threads
        self._on_scanned = on_scanned
        self._lock = threading.Lock()
        self._indexes: dict[Path, ModelIndex] = {}
        self._places: dict[Content, list[tuple[Path, int]]] = {}
        self._refused: dict[Path, FileState] = {}  # only the scanning thread uses it
        self._distrusted: set[Path] = set()
        self._complained: set[str] = set()
        self._is_scanning = False
        self._scanned_s = -_SCAN_GAP_S
        self._first_scan = threading.Event()
        self._closed = threading.Event()

    def start(self, timeout_s: float) -> None:
        """Look for files; return when all have an index, or after `timeout_s` while it goes on."""
        self.refresh()
        if not self._first_scan.wait(timeout_s):
            _LOG.warning("model files are still being read; until that is done, their weights cross the wire")

    def refresh(self) -> None:
        """Look for new, changed and vanished files, on a thread of its own, unless that was done just now."""
        with self._lock:
            too_early = time.monotonic() < self._scanned_s + _SCAN_GAP_S
            if self._is_scanning or too_early or self._closed.is_set():
                return
            self._is_scanning = True
        self._spawn("model files", self._scan)

    def load(self, content: Content, place: Place) -> bool:
        """Copy a weight to its place; False = no file has it. Bytes that were not checked do not stay there."""
        with self._lock:
            found = list(self._places.get(content, ()))
        for path, start in found:
            if self._read(path, start, content, place):
                return True
        self.refresh()
        return False

    def places(self) -> list[tuple[Content, Path, int]]:
        """Return every tensor: its content, a file that has it, and where it starts there."""
        with self._lock:
            return [(content, *places[0]) for content, places in self._places.items()]

    def close(self) -> None:
        """Stop reading files."""
        self._closed.set()

    def _read(self, path: Path, start: int, content: Content, place: Place) -> bool:
        with self._lock:
            index = self._indexes.get(path)
        if index is None:
            return False
        try:
            file = os.open(path, _OPEN_FLAGS)
            try:
                is_same = FileState.of(os.fstat(file)) == index.state
                if is_same and read_content(file, start, content, place):
                    return True
            finally:
                os.close(file)
        except OSError as error:
            self._complain(f"the model file {path} cannot be read: {error}")
            is_same = False
        if is_same:
            self._complain(f"the index of {path} is wrong; it is made again")
        self._forget(path, distrust=is_same)
        return False

    def _forget(self, path: Path, *, distrust: bool) -> None:
        with self._lock:
            self._indexes.pop(path, None)
            if distrust:
                self._distrusted.add(path)
            self._renew_places()

    def _scan(self) -> None:
        try:
            self._update()
        except Exception:
            _LOG.exception("looking for model files failed")
        with self._lock:
            self._is_scanning = False
            self._scanned_s = time.monotonic()
        self._first_scan.set()
        self._on_scanned()

    def _update(self) -> None:
        found: set[Path] = set()
        for path, state in self._files():
            found.add(path)
            with self._lock:
                index = self._indexes.get(path)
            is_known = index is not None and index.state == state
            if is_known or self._refused.get(path) == state or self._closed.is_set():
                continue
            new = self._index(path, state)
            with self._lock:
                self._indexes.pop(path, None)
                if new is not None:
                    self._indexes[path] = new
                self._renew_places()
        with self._lock:
            for path in set(self._indexes) - found:
                del self._indexes[path]
            self._renew_places()

    def _renew_places(self) -> None:
        places: dict[Content, list[tuple[Path, int]]] = {}
        for path, index in self._indexes.items():
            for start, content in index.tensors:
                places.setdefault(content, []).append((path, start))
        self._places = places

    def _index(self, path: Path, state: FileState) -> ModelIndex | None:
        """Return the index of a file, from where it was kept or made now; None = the file cannot be used (yet)."""
        kept = index_paths(path, self._index_folder)
        with self._lock:
            is_trusted = path not in self._distrusted
        index = load_index(kept, state) if is_trusted else None
        if index is not None:
            return index
        try:
            index = build_index(path, n_threads=self._n_threads, is_stopped=self._closed.is_set)
        except (ModelError, OSError) as error:
            self._refuse(path, state, error)
            return None
        if index is None:
            return None
        if not save_index(kept, index):
            self._complain(f"the index of {path} cannot be kept, it will be made at every start")
        with self._lock:
            self._distrusted.discard(path)
        return index

    def _refuse(self, path: Path, state: FileState, error: Exception) -> None:
        if time.time_ns() - state.mtime_ns < _SETTLED_NS:
            _LOG.info("the model file %s cannot be used yet: %s", path, error)
            return
        self._refused[path] = state
        _LOG.warning("a model file is left out: %s", error)

    def _files(self) -> Iterator[tuple[Path, FileState]]:
        """Yield each GGUF file once, by whatever name it is found first; links to files are followed."""
        seen: set[tuple[int, int]] = set()
        for folder in self._folders:
            for root, folders, names in os.walk(folder, onerror=self._complain_of_folder):
                folders.sort()
                for name in sorted(names):
                    path = Path(root, name)
                    if not name.endswith(_ENDING):
                        continue
                    try:
                        found = path.stat()
                    except OSError as error:
                        self._complain(f"the model file {path} cannot be read: {error}")
                        continue
                    identity = (found.st_dev, found.st_ino)
                    if stat.S_ISREG(found.st_mode) and identity not in seen:
                        seen.add(identity)
                        yield path, FileState.of(found)

    def _complain_of_folder(self, error: OSError) -> None:
        self._complain(f"a folder of model files cannot be read: {error}")

    def _complain(self, text: str) -> None:
        """Warn once."""
        with self._lock:
            is_new = text not in self._complained
            self._complained.add(text)
        if is_new:
            _LOG.warning("%s", text)
