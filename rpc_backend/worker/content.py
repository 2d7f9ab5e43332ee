"""Content by its digest, between files and the memory of devices, checked on every way.

Belongs here: what a digest is, and moving bytes while it is computed. Must not be here: which file may have the
content (`cache_folder`, `model_files`).

Source: xxh3-128 in its canonical (big-endian) form, as the package `xxhash` gives it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import xxhash

from rpc_backend.errors import GraphError
from rpc_backend.worker.fnv import FNV_NBYTES, Fnv1a
from rpc_backend.worker.tasks import Place

DIGEST_NBYTES = 16
# Small enough to stay in a core's cache between reading, digest and copy. Files are read, never mapped: one that is
# cut short under a mapping would end the process.
_PIECE_NBYTES = 1 << 20
_NAMING_PIECE_NBYTES = 4 << 20

Write = Callable[[int, memoryview], int]
"""As `os.write`."""


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes known by their digest and their number.

    A weight that a client uploads after it asked for it by another name has that in place of the digest, until it is
    stored.
    """

    digest: bytes
    nbytes: int

    @property
    def is_named(self) -> bool:
        """Whether it has a name, FNV-1a, in place of its digest."""
        return len(self.digest) == FNV_NBYTES

    def __str__(self) -> str:
        return f"{self.digest.hex()} of {self.nbytes} bytes"


def check_digest(digest: bytes) -> bytes:
    """Return a digest, or a name, that came from outside.

    Raises:
        GraphError: it has another length.
    """
    if len(digest) not in (DIGEST_NBYTES, FNV_NBYTES):
        raise GraphError(f"a digest of {len(digest)} bytes came; xxh3-128 has {DIGEST_NBYTES}, FNV-1a {FNV_NBYTES}")
    return digest


def digest_of(file: int, start: int, nbytes: int) -> bytes | None:
    """Return the digest of bytes of an open file; None if it ends before. Raises OSError."""
    digest = xxhash.xxh3_128()
    for _, piece in _pieces(nbytes):
        if not _read_full(file, piece, start):
            return None
        digest.update(piece)
        start += piece.nbytes
    return digest.digest()


def names_of(file: int, start: int, nbytes: int, *, is_stopped: Callable[[], bool]) -> tuple[bytes, bytes] | None:
    """Return digest and FNV-1a of bytes of an open file; None if it ends before, or `is_stopped` was true.

    Raises OSError.
    """
    digest, name = xxhash.xxh3_128(), Fnv1a()
    for at, piece in _pieces(nbytes, _NAMING_PIECE_NBYTES):
        if is_stopped() or not _read_full(file, piece, start + at):
            return None
        digest.update(piece)
        name.update(piece)
    return digest.digest(), name.digest()


def content_at(place: Place) -> Content:
    """Return what lies at a place. Raises RpcBackendError: it is gone."""
    digest = xxhash.xxh3_128()
    for at, piece in _pieces(place.nbytes):
        place.buffer.read_into(place.offset + at, piece)
        digest.update(piece)
    return Content(digest.digest(), place.nbytes)


def read_content(file: int, start: int, content: Content, place: Place) -> bool:
    """Copy content from an open file to its place; False = the file has something else there.

    Bytes that were not checked do not stay: without success the place is zeroed. Raises OSError.
    """
    done = False
    try:
        done = _read_checked(file, start, content, place)
    finally:
        if not done:
            place.buffer.fill(place.offset, place.nbytes, 0)
    return done


def write_content(
    file: int, content: Content, place: Place, *, is_stopped: Callable[[], bool], write: Write = os.write
) -> bool:
    """Write what is at a place to an open file; False = it is not the content, or `is_stopped` was true in between.

    The digest is that of the written bytes, so nobody who changes the place meanwhile can do harm.

    Raises:
        OSError: they cannot be written.
        RpcBackendError: the place is gone.
    """
    digest = xxhash.xxh3_128()
    for at, piece in _pieces(content.nbytes):
        if is_stopped():
            return False
        place.buffer.read_into(place.offset + at, piece)
        digest.update(piece)
        _write_full(file, piece, write)
    return digest.digest() == content.digest


def _read_checked(file: int, start: int, content: Content, place: Place) -> bool:
    digest = xxhash.xxh3_128()
    for at, piece in _pieces(content.nbytes):
        if not _read_full(file, piece, start + at):
            return False
        digest.update(piece)
        place.buffer.write(place.offset + at, piece)
    return digest.digest() == content.digest


def _pieces(nbytes: int, piece_nbytes: int = _PIECE_NBYTES) -> Iterator[tuple[int, memoryview]]:
    """Yield the start of each piece, and memory for it, which is the same each time."""
    memory = memoryview(bytearray(min(nbytes, piece_nbytes)))
    for at in range(0, nbytes, piece_nbytes):
        yield at, memory[: min(piece_nbytes, nbytes - at)]


def _read_full(file: int, out: memoryview, start: int) -> bool:
    n_read = 0
    while n_read < out.nbytes:
        n_new = os.preadv(file, [out[n_read:]], start + n_read)
        if n_new == 0:
            return False
        n_read += n_new
    return True


def _write_full(file: int, data: memoryview, write: Write) -> None:
    n_written = 0
    while n_written < data.nbytes:
        n_written += write(file, data[n_written:])
