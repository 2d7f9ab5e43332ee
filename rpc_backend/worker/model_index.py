"""The digests of all tensors of a GGUF file, computed once and kept beside it.

Belongs here: making, keeping and reading one index. Must not be here: which files there are, or serving from them
(`model_files`).

An index is JSON: the size and the time of change of the file it was made from, and `[start, nbytes, digest]` of each
tensor. Whoever uses it checks what he reads by the digest, so a wrong index costs time and nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from rpc_backend.gguf_file import GgufFile
from rpc_backend.text import human_nbytes
from rpc_backend.worker.content import DIGEST_NBYTES, Content, digest_of

_LOG = logging.getLogger(__name__)

_FORMAT = "xxh3-128 digests of GGUF tensors, 1"
_SUFFIX = ".digests"
_MAX_INDEX_NBYTES = 64 << 20
_PROGRESS_S = 10.0


@dataclass(frozen=True, slots=True)
class FileState:
    """What shows that a file was changed: its size and the time of its last change."""

    nbytes: int
    mtime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileState:
        """Take it from what `os.stat` gives."""
        return cls(found.st_size, found.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """The tensors of a file in one state, each with the byte where it starts."""

    state: FileState
    tensors: tuple[tuple[int, Content], ...]


def index_paths(path: Path, folder: Path | None) -> list[Path]:
    """Return where the index of a model file may be: beside it, else in `folder`, by the file's whole path."""
    beside = path.with_name(path.name + _SUFFIX)
    if folder is None:
        return [beside]
    return [beside, folder / (xxhash.xxh3_128_hexdigest(os.fsencode(path.absolute())) + _SUFFIX)]


def load_index(paths: Sequence[Path], state: FileState) -> ModelIndex | None:
    """Return the first index that was made from a file in this state, if there is one."""
    for path in paths:
        try:
            with path.open("rb") as file:
                text = file.read(_MAX_INDEX_NBYTES + 1)
            index = _parse(text)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            _LOG.warning("the index %s cannot be used and is made again: %s", path, error)
            continue
        if index.state == state:
            return index
    return None


def save_index(paths: Sequence[Path], index: ModelIndex) -> bool:
    """Keep an index at the first path that can be written; False = nowhere."""
    text = json.dumps(
        {
            "format": _FORMAT,
            "nbytes": index.state.nbytes,
            "mtime_ns": index.state.mtime_ns,
            "tensors": [[start, content.nbytes, content.digest.hex()] for start, content in index.tensors],
        }
    )
    for path in paths:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(path, text.encode())
        except OSError as error:
            _LOG.info("no index can be kept at %s: %s", path, error)
        else:
            return True
    return False


def build_index(path: Path, *, n_threads: int, is_stopped: Callable[[], bool]) -> ModelIndex | None:
    """Read a whole model file; None = it changed meanwhile, or `is_stopped` was true.

    Raises:
        ModelError: it is no GGUF file that can be used.
        OSError: it cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        state = FileState.of(os.fstat(file))
        places = [(tensor.offset, tensor.data.nbytes) for tensor in GgufFile.open(path).tensors.values()]

        def digest(place: tuple[int, int]) -> bytes | None:
            return None if is_stopped() else digest_of(file, *place)

        with _mapping(n_threads) as mapped:
            digests = list(_with_progress(path, state.nbytes, places, mapped(digest, places)))
        if FileState.of(os.fstat(file)) != state:
            return None
    finally:
        os.close(file)
    tensors = [
        (start, Content(found, nbytes))
        for (start, nbytes), found in zip(places, digests, strict=True)
        if found is not None
    ]
    return ModelIndex(state, tuple(tensors)) if len(tensors) == len(places) else None


_Mapping = Callable[[Callable[[tuple[int, int]], bytes | None], Sequence[tuple[int, int]]], Iterator[bytes | None]]


@contextmanager
def _mapping(n_threads: int) -> Iterator[_Mapping]:
    if n_threads == 1:
        yield map
        return
    with ThreadPoolExecutor(n_threads, "model index") as pool:
        yield pool.map


def _with_progress(
    path: Path, total_nbytes: int, places: Sequence[tuple[int, int]], digests: Iterator[bytes | None]
) -> Iterator[bytes | None]:
    _LOG.info("%s: computing the digests of %d tensors, %s", path, len(places), human_nbytes(total_nbytes))
    began_s = said_s = time.monotonic()
    done_nbytes = 0
    for (_, nbytes), digest in zip(places, digests, strict=True):
        yield digest
        done_nbytes += nbytes
        if time.monotonic() - said_s >= _PROGRESS_S:
            said_s = time.monotonic()
            _LOG.info("%s: %s of %s", path, human_nbytes(done_nbytes), human_nbytes(total_nbytes))
    _LOG.info("%s: done in %.1f s", path, time.monotonic() - began_s)


def _parse(text: bytes) -> ModelIndex:
    if len(text) > _MAX_INDEX_NBYTES:
        raise ValueError(f"it has more than {_MAX_INDEX_NBYTES} bytes")
    fields = json.loads(text)
    if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
        raise ValueError(f"it is not of the form {_FORMAT!r}")
    state = FileState(_count(fields["nbytes"]), _count(fields["mtime_ns"]))
    return ModelIndex(state, tuple(_parse_tensor(item, state.nbytes) for item in fields["tensors"]))


def _parse_tensor(item: Any, file_nbytes: int) -> tuple[int, Content]:
    start, nbytes, text = item
    digest = bytes.fromhex(text)
    if _count(start) + _count(nbytes) > file_nbytes or len(digest) != DIGEST_NBYTES:
        raise ValueError(f"{item!r} is no tensor of a file of {file_nbytes} bytes")
    return start, Content(digest, nbytes)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.rename(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
