"""Where weights come from when a client has only a digest, and where they are kept when it uploads them.

Belongs here: the sources of one worker, in their order, and the counts. Must not be here: what each source does
(`weight_cache`, `model_files`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from rpc_backend.interfaces import Buffer
from rpc_backend.protocol.negotiation import WEIGHT_CACHE, WEIGHT_SOURCE
from rpc_backend.worker.cache_folder import CacheFolder
from rpc_backend.worker.config import WorkerConfig
from rpc_backend.worker.content import Content
from rpc_backend.worker.names import Names
from rpc_backend.worker.naming import Namer
from rpc_backend.worker.peers import Spawn
from rpc_backend.worker.tasks import Place
from rpc_backend.worker.weight_cache import WeightCache

if TYPE_CHECKING:
    from rpc_backend.worker.model_files import ModelFiles

_CLOSE_TIMEOUT_S = 2.0
_FIRST_SCAN_TIMEOUT_S = 10.0


class Weights:
    """The cache and the model files of a worker, of which it may have none. Any thread may call it."""

    def __init__(self, config: WorkerConfig, spawn: Spawn) -> None:
        """Open the sources that the configuration names; a cache that cannot be used is a warning."""
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(
            ("cache_hits", "cache_misses", "model_hits", "nbytes_from_cache", "nbytes_from_models", "nbytes_stored"), 0
        )
        self._names = None if config.names_file is None else Names(config.names_file)
        self._namer = None if self._names is None else Namer(self._names, spawn)
        folder = None if config.cache_folder is None else CacheFolder(config.cache_folder)
        self._cache = None if folder is None else _open_cache(folder, config.cache_limit_nbytes, spawn, self._stored)
        self._models = _open_models(config, spawn, self._poke_namer) if config.model_folders else None
        if self._namer is not None:
            self._namer.attach(None if self._cache is None else folder, self._models)

    @property
    def abilities(self) -> tuple[str, ...]:
        """What HELLO says of it."""
        cache = () if self._cache is None else (WEIGHT_CACHE,)
        return cache if self._models is None else (*cache, WEIGHT_SOURCE)

    @property
    def keeps_uploads(self) -> bool:
        """Whether `keep` does anything."""
        return self._cache is not None

    def start(self) -> None:
        """Read the model files; if that takes long, it goes on while the worker serves."""
        if self._models is not None:
            self._models.start(_FIRST_SCAN_TIMEOUT_S)
        self._poke_namer()

    def refresh(self) -> None:
        """Look for model files that came or went, and for what has no name yet."""
        if self._models is not None:
            self._models.refresh()
        else:
            self._poke_namer()

    def load(self, content: Content, place: Place) -> bool:
        """Put a weight in its place; False = it must come from the client. What was there before may be gone.

        A content that has a name in place of its digest is the one that is known by it.
        """
        known = self._find(content) if content.is_named else content
        return known is not None and self._load(known, place)

    def _find(self, content: Content) -> Content | None:
        found = None if self._names is None else self._names.find(content.digest, content.nbytes)
        if found is None and self._cache is not None:
            self.count(cache_misses=1)
        return found

    def _load(self, content: Content, place: Place) -> bool:
        if self._models is not None and self._models.load(content, place):
            self.count(model_hits=1, nbytes_from_models=content.nbytes)
            return True
        if self._cache is None:
            return False
        found = self._cache.load(content, place)
        if found:
            self.count(cache_hits=1, nbytes_from_cache=content.nbytes)
        else:
            self.count(cache_misses=1)
        return found

    def keep(self, content: Content, place: Place) -> None:
        """Keep a weight that was uploaded, if there is a cache. Returns at once."""
        if self._cache is not None:
            self._cache.store(content, place)

    def _stored(self, nbytes: int) -> None:
        self.count(nbytes_stored=nbytes)
        self._poke_namer()

    def _poke_namer(self) -> None:
        if self._namer is not None:
            self._namer.poke()

    def when_stored(self, buffer: Buffer, close: Callable[[], None]) -> None:
        """Have a buffer closed now, or once all of it is kept that should be."""
        if self._cache is None:
            close()
        else:
            self._cache.when_stored(buffer, close)

    def give_up(self) -> bool:
        """Close the buffers that `when_stored` still holds; False = there are none."""
        return self._cache is not None and self._cache.give_up()

    def count(self, **increments: int) -> None:
        """Add to the counts."""
        with self._lock:
            for name, increment in increments.items():
                self._counts[name] += increment

    def counts(self) -> dict[str, int]:
        """Return the counts since the worker started."""
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        """Stop reading and storing."""
        if self._namer is not None:
            self._namer.close()
        if self._models is not None:
            self._models.close()
        if self._cache is not None:
            self._cache.close(_CLOSE_TIMEOUT_S)


def _open_cache(
    folder: CacheFolder, limit_nbytes: int | None, spawn: Spawn, on_stored: Callable[[int], None]
) -> WeightCache | None:
    cache = WeightCache(folder, limit_nbytes, spawn, on_stored=on_stored)
    return cache if cache.open() else None


def _open_models(config: WorkerConfig, spawn: Spawn, on_scanned: Callable[[], None]) -> ModelFiles:
    from rpc_backend.worker.model_files import ModelFiles  # its reader of files takes memory that few workers need

    return ModelFiles(config.model_folders, config.index_folder, spawn, on_scanned=on_scanned)
