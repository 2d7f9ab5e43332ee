"""A folder of weights by digest, which several workers may share.

Belongs here: names, reading and storing entries, sizes and use times. Must not be here: what a worker does when the
folder fails it (`weight_cache`), or the command that shows a folder (`cli`).

An entry is a file `DIGEST-NBYTES.weights` that holds the bytes and nothing else. It is written under a temporary
name, whose writer holds a lock on it, and renamed when its digest is right, so that a reader sees all of it or
nothing. Its time of change is when it was last used. Anything else in the folder is not ours and stays as it is.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rpc_backend.worker.content import DIGEST_NBYTES, Content, Write, digest_of, read_content, write_content
from rpc_backend.worker.tasks import Place

_LOG = logging.getLogger(__name__)

_ENTRY = re.compile(r"([0-9a-f]{32})-(0|[1-9][0-9]{0,18})\.weights", re.ASCII)
_TEMPORARY = re.compile(r"[0-9a-f]{32}-[0-9]{1,19}\.[0-9a-f]{16}\.tmp", re.ASCII)
# A link is not followed, and a pipe does not make the opener wait.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the cache: what its name promises, the bytes it takes, and when it was last used."""

    content: Content
    stored_nbytes: int
    used_ns: int


class CacheFolder:
    """The entries of one folder. Any thread and any process may use it at the same time.

    Every method raises OSError if the folder or a file cannot be used.
    """

    def __init__(self, path: Path, write: Write = os.write) -> None:
        """Name a folder, which need not exist; `write` is for tests of full disks."""
        self.path = path
        self._write = write

    def create(self) -> None:
        """Make the folder, for this user only, if it is not there."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def probe(self) -> None:
        """Check that a file can be made in the folder."""
        with self._temporary(self.path_of(Content(bytes(DIGEST_NBYTES), 0))):
            pass

    def load(self, content: Content, place: Place) -> bool:
        """Copy an entry to its place and note its use; False = there is none, or it was damaged and is gone now."""
        file = self._open(self.path_of(content))
        if file is None:
            return False
        try:
            if os.fstat(file).st_size == content.nbytes and read_content(file, 0, content, place):
                with suppress(OSError):  # a folder that may only be read: its entries never count as used
                    os.utime(file)
                return True
        finally:
            os.close(file)
        _LOG.warning("the cached weight %s is damaged; it is removed", self.path_of(content))
        self.remove(content)
        return False

    def store(
        self, content: Content, place: Place, *, limit_nbytes: int | None, is_stopped: Callable[[], bool]
    ) -> bool:
        """Write what is at a place as an entry, and remove the entries used longest ago if it does not fit.

        False = it is there already, is above the limit alone, is not what the digest says, or `is_stopped` was true.

        Raises:
            RpcBackendError: the place is gone.
        """
        if self._has(content):
            return False
        if limit_nbytes is not None:
            if content.nbytes > limit_nbytes:
                return False
            self.prune(limit_nbytes - content.nbytes)
        path = self.path_of(content)
        with self._temporary(path) as (file, temporary):
            if not write_content(file, content, place, is_stopped=is_stopped, write=self._write):
                return False
            temporary.rename(path)
        return True

    def entries(self) -> list[Entry]:
        """Return all entries, those used longest ago first."""
        found: list[Entry] = []
        with os.scandir(self.path) as listing:
            for item in listing:
                entry = _entry_of(item)
                if entry is not None:
                    found.append(entry)
        return sorted(found, key=lambda entry: (entry.used_ns, entry.content.digest))

    def is_sound(self, entry: Entry) -> bool:
        """Read an entry and say whether it is what its name promises; one that is gone by now is sound."""
        file = self._open(self.path_of(entry.content))
        if file is None:
            return True
        try:
            content = entry.content
            return os.fstat(file).st_size == content.nbytes and digest_of(file, 0, content.nbytes) == content.digest
        finally:
            os.close(file)

    def prune(self, limit_nbytes: int) -> list[Entry]:
        """Remove the entries used longest ago until the others take `limit_nbytes` or less; return the removed."""
        entries = self.entries()
        excess_nbytes = sum(entry.stored_nbytes for entry in entries) - limit_nbytes
        removed: list[Entry] = []
        for entry in entries:
            if excess_nbytes <= 0:
                break
            self.remove(entry.content)
            excess_nbytes -= entry.stored_nbytes
            removed.append(entry)
        return removed

    def remove(self, content: Content) -> None:
        """Remove an entry, if it is there; whoever reads it can go on."""
        self.path_of(content).unlink(missing_ok=True)

    def sweep(self) -> int:
        """Remove the temporary files of writers that died, and return how many there were."""
        with os.scandir(self.path) as listing:
            names = [item.name for item in listing if _TEMPORARY.fullmatch(item.name)]
        return sum(self._sweep(self.path / name) for name in names)

    def path_of(self, content: Content) -> Path:
        """Return where the entry of a content is, if it is there."""
        return self.path / f"{content.digest.hex()}-{content.nbytes}.weights"

    def _has(self, content: Content) -> bool:
        """Whether there is an entry of the right size; if so, it counts as used now."""
        file = self._open(self.path_of(content))
        if file is None:
            return False
        try:
            if os.fstat(file).st_size != content.nbytes:
                return False
            with suppress(OSError):  # as in `load`
                os.utime(file)
            return True
        finally:
            os.close(file)

    def _open(self, path: Path) -> int | None:
        """Open a file of the folder, or return None: there is none, or it is a link, a folder, a pipe."""
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                return None
            file = os.open(path, _READ_FLAGS)
        except FileNotFoundError:
            return None
        if stat.S_ISREG(os.fstat(file).st_mode):
            return file
        os.close(file)
        return None

    @contextmanager
    def _temporary(self, path: Path) -> Iterator[tuple[int, Path]]:
        """Create and lock a temporary file; it is gone at the end, unless it was renamed."""
        temporary = path.with_name(f"{path.stem}.{secrets.token_hex(8)}.tmp")
        file = os.open(temporary, _CREATE_FLAGS, 0o666)
        try:
            with suppress(OSError):  # a file system without locks: `sweep` cannot lock it either
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file, temporary
        finally:
            os.close(file)
            temporary.unlink(missing_ok=True)

    def _sweep(self, temporary: Path) -> bool:
        file = self._open(temporary)
        if file is None:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink(missing_ok=True)
        except OSError:  # its writer is at work, or nothing can be locked or removed here
            return False
        finally:
            os.close(file)
        return True


def _entry_of(item: os.DirEntry[str]) -> Entry | None:
    match = _ENTRY.fullmatch(item.name)
    if match is None:
        return None
    try:
        found = item.stat(follow_symlinks=False)
    except FileNotFoundError:  # another worker removed it just now
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Entry(Content(bytes.fromhex(match[1]), int(match[2])), found.st_size, found.st_mtime_ns)
