"""Compiled kernels on disk.

Belongs here: where object files are kept, that a damaged one is never used, and whose turn it is to make one. Must not
be here: compiling.

A folder's name holds a digest of all that its kernels depend on: this package's sources, numba and llvmlite,
and the CPU. A change of any makes a new folder, so that no stale kernel is ever loaded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO

from rpc_backend_numba.targets import Target

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

_log = logging.getLogger(__name__)
_LOOK_S = 0.05
_FOLDER = re.compile(r"-[0-9a-f]{20}$")
_DIGEST_NBYTES = 16


class KernelCache:
    """Object files by kernel name in one folder; without a folder, or if it cannot be written, nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def read(self, name: str) -> tuple[str, bytes] | None:
        """Return the symbol and object file of a kernel, or None if there is no good one."""
        if self.folder is None:
            return None
        path = self._path(name)
        body = read_whole(path)
        if body is None:
            return None
        symbol, object_file = body.split(b"\0", 1)
        return symbol.decode(), object_file

    def write(self, name: str, symbol: str, object_file: bytes) -> None:
        """Keep a kernel: a reader sees the whole file or none. A failure is a warning, and ends keeping."""
        if self.folder is None:
            return
        try:
            _make_folder(self.folder)
            write_whole(self._path(name), symbol.encode() + b"\0" + object_file)
        except OSError as error:
            _log.warning("compiled kernels cannot be kept in %s: %s", self.folder, error)
            self.folder = None

    def has(self, name: str) -> bool:
        """Whether there is a good file of a kernel."""
        return self.read(name) is not None

    @contextmanager
    def turn(self, name: str, wait_s: float) -> Iterator[bool]:
        """Yield whether this process may compile a kernel: no other one is at it, or was for all of `wait_s`.

        A process that ends gives up its turns, however it ends. Without a folder, or where files cannot be locked,
        there is nothing to wait for.
        """
        file = self._lock_file(name)
        if file is None:
            yield True
            return
        with file:
            is_mine = _lock(file.fileno(), wait_s)
            try:
                yield is_mine
            finally:
                if is_mine:
                    Path(file.name).unlink(missing_ok=True)  # whoever waits for it finds the kernel

    def _lock_file(self, name: str) -> BinaryIO | None:
        if self.folder is None or fcntl is None:
            return None
        try:
            _make_folder(self.folder)
            return open(self.folder / f".turn-{name}", "wb")
        except OSError:
            return None

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.o"


def cache_folder(root: Path, target: Target, package: Path = Path(__file__).parent) -> Path:
    """Return the folder below `root` for kernels of this code on this CPU; `package` is the folder of the code."""
    versions = [package_version("numba"), package_version("llvmlite")]
    facts = [_sources_digest(package), *versions, astuple(target)]
    key = hashlib.blake2b(json.dumps(facts).encode(), digest_size=10).hexdigest()
    return root / "numba-kernels" / f"{target.cpu}-{target.name}-{key}"


def _make_folder(folder: Path) -> None:
    """Make the folder if it is missing, and then prune those beside it. Raises OSError."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        prune(folder)


def prune(folder: Path, keep: int = 6) -> None:
    """Remove all but the newest `keep` folders beside `folder`, which are those of other versions, CPUs and targets.

    A process that still uses one compiles again what it has not loaded yet.
    """
    others = [path for path in folder.parent.iterdir() if path != folder and _FOLDER.search(path.name)]
    for path in sorted(others, key=_changed, reverse=True)[keep:]:
        shutil.rmtree(path, ignore_errors=True)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed meanwhile
        return 0.0


def _lock(handle: int, wait_s: float) -> bool:
    """Lock a file within `wait_s`; return whether it is."""
    assert fcntl is not None
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)
        else:
            return True


def read_whole(path: Path) -> bytes | None:
    """Return what `write_whole` put into a file; None if there is none, or with a warning if it is damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, body = data[:_DIGEST_NBYTES], data[_DIGEST_NBYTES:]
    if digest == _digest(body):
        return body
    _log.warning("%s is damaged and will be made again", path)
    return None


def write_whole(path: Path, body: bytes) -> None:
    """Write a file with a digest; a reader sees the whole file or none. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_digest(body) + body)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_NBYTES).digest()


def _sources_digest(package: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
