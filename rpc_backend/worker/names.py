"""Contents by a second name: FNV-1a of 64 bits, by which clients of ggml-rpc ask for weights.

Belongs here: which name is which content, and the file that keeps it. Must not be here: hashing (`fnv`), or which
contents are named (`naming`).

The file has a line `FNV NBYTES DIGEST` per content; several workers may append to it. Names are made by workers from
the bytes themselves, never taken from a client. 64 bits do not exclude that two contents have one name; where both are
known, the name is nobody's.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from pathlib import Path

from rpc_backend.worker.content import Content

_LOG = logging.getLogger(__name__)

_LINE = re.compile(rb"([0-9a-f]{16}) (0|[1-9][0-9]{0,18}) ([0-9a-f]{32})")
_MAX_NBYTES = 64 << 20
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_APPEND_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_Key = tuple[bytes, int]


class Names:
    """The names in one file. Any thread may call it; a file that cannot be used is one warning."""

    def __init__(self, path: Path) -> None:
        """Name the file, which need not exist."""
        self._path = path
        self._lock = threading.Lock()
        self._contents: dict[_Key, Content | None] = {}
        self._named: set[Content] = set()
        self._read_nbytes = 0
        self._has_failed = False

    def find(self, name: bytes, nbytes: int) -> Content | None:
        """Return the content of a name and a size; None = it is not known, or there are several."""
        with self._lock:
            if (name, nbytes) not in self._contents:
                self._read_on()
            return self._contents.get((name, nbytes))

    def has(self, content: Content) -> bool:
        """Whether a content has a name here."""
        with self._lock:
            return content in self._named

    def refresh(self) -> None:
        """Learn what other workers named since."""
        with self._lock:
            self._read_on()

    def add(self, name: bytes, content: Content) -> None:
        """Enter a content under its name, here and in the file."""
        line = f"{name.hex()} {content.nbytes} {content.digest.hex()}\n".encode()
        with self._lock:
            if content in self._named:
                return
            self._enter(name, content)
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file = os.open(self._path, _APPEND_FLAGS, 0o600)
                try:
                    os.write(file, line)
                finally:
                    os.close(file)
            except OSError as error:
                self._complain(error)

    def _enter(self, name: bytes, content: Content) -> None:
        key = (name, content.nbytes)
        self._named.add(content)
        self._contents[key] = content if self._contents.get(key, content) == content else None

    def _read_on(self) -> None:
        try:
            file = os.open(self._path, _READ_FLAGS)
            try:
                size = min(os.fstat(file).st_size, _MAX_NBYTES)
                start = self._read_nbytes if self._read_nbytes <= size else 0  # it was made anew
                text = os.pread(file, size - start, start)
            finally:
                os.close(file)
        except FileNotFoundError:
            return
        except OSError as error:
            self._complain(error)
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._read_nbytes = start + len(whole)
        for match in filter(None, map(_LINE.fullmatch, whole.splitlines())):
            self._enter(bytes.fromhex(match[1].decode()), Content(bytes.fromhex(match[3].decode()), int(match[2])))

    def _complain(self, error: OSError) -> None:
        if not self._has_failed:
            _LOG.warning("names of weights for ggml-rpc clients cannot be kept in %s: %s", self._path, error)
        self._has_failed = True
