"""GGUF files: metadata as plain values, tensors as bytes of the mapped file.

Belongs here: opening a file, and every complaint about its form. Must not be here: what a metadata key
means, or which tensors a model needs (`models`).

Source: the GGUF specification in ggml's `docs/gguf.md`; the `gguf` package reads the layout.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import numpy.typing as npt

from rpc_backend.errors import ModelError, ModelFileError, UnsupportedModelError
from rpc_backend.graph import ELEMENT_TYPES, MAX_DIMS, ElementType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_HEADER = struct.Struct("<4sI")
_COUNT = struct.Struct("<Q")
_SPLIT_KEY = "split.count"
_STRINGS = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING]
_DAMAGED = "the file is damaged or was cut short; download or convert it again"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of a file.

    `ne` counts elements, innermost first, without trailing extents the file does not have. `data` are
    its bytes, flat and read-only, in the mapped file; they begin at byte `offset` of it.
    """

    name: str
    type: ElementType
    ne: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open GGUF file; it stays mapped for as long as any tensor's data is referenced."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @classmethod
    def open(cls, path: str | Path) -> GgufFile:
        """Map a file and check its form; no tensor byte is read.

        Raises:
            ModelFileError: missing, no file, unreadable, not GGUF, big-endian, truncated or damaged.
            UnsupportedModelError: a version, an element type or a split file that is not supported.
        """
        path = Path(path)
        try:
            _check_header(path)
            reader = _Reader(path)
            metadata = {name: _plain_value(name, field) for name, field in reader.fields.items() if _is_key(name)}
            _check_whole(metadata)
            return cls(path, metadata, {tensor.name: tensor for tensor in reader.located})
        except ModelError as error:
            raise type(error)(f"{path}: {error.message}") from error
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
            raise ModelFileError(f"{path}: {_DAMAGED} ({type(error).__name__}: {error})") from error


class _Reader(gguf.GGUFReader):
    """The package's reader with two steps replaced.

    Arrays are cut in one go: its own way takes seconds for a vocabulary. Tensors are located with our
    element types and checked against the end of the file, so that a complaint can name the tensor. Every
    read behind the end of the file is an error.
    """

    located: list[GgufTensor]

    def _get(
        self,
        offset: int,
        dtype: npt.DTypeLike,
        count: int = 1,
        override_order: Literal["I", "S", "<"] | None = None,
    ) -> npt.NDArray[Any]:
        values = super()._get(offset, dtype, count, override_order)
        if len(values) != count:
            raise ValueError(f"{count} values at byte {offset} reach behind the end of the file")
        return values

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[Any], list[int], list[gguf.GGUFValueType]]:
        kind = gguf.GGUFValueType(raw_type)
        if kind is not gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        item_code, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        item_kind, start = gguf.GGUFValueType(item_code[0]), orig_offs + 12
        if item_kind is gguf.GGUFValueType.STRING:
            strings, nbytes = _strings(self.data.data, start, int(count[0]))
            return 12 + nbytes, [item_code, count, strings], [2], [kind, item_kind]
        values = self._array(start, item_kind, int(count[0]))
        return 12 + values.nbytes, [item_code, count, values], [2], [kind, item_kind]

    def _array(self, start: int, kind: gguf.GGUFValueType, count: int) -> npt.NDArray[Any]:
        dtype = self.gguf_scalar_to_np.get(kind)
        if dtype is None:
            raise ValueError(f"an array of {kind.name} at byte {start}")
        return self._get(start, dtype, count)

    def _build_tensors(self, start_offs: int, fields: Sequence[gguf.ReaderField]) -> None:
        content = np.asarray(self.data)
        found: dict[str, GgufTensor] = {}
        for field in fields:
            tensor = _locate(field, start_offs, content)
            if tensor.name in found:
                raise ModelFileError(f"tensor {tensor.name} is listed twice; {_DAMAGED}")
            found[tensor.name] = tensor
        self.located = list(found.values())


def _check_header(path: Path) -> None:
    if not path.exists():
        raise ModelFileError("no such file; check the path")
    if not path.is_file():
        what = "a directory" if path.is_dir() else "not a regular file"
        raise ModelFileError(f"is {what}; name the .gguf file itself")
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    if not head:
        raise ModelFileError("the file is empty; download or convert it again")
    if not head.startswith(MAGIC):
        raise ModelFileError(f"is not a GGUF file: it begins with {head[:4]!r}; convert the model to GGUF")
    if len(head) < _HEADER.size:
        raise ModelFileError(_DAMAGED)
    _check_version(head)


def _check_version(head: bytes) -> None:
    (_, version), swapped = _HEADER.unpack(head), int.from_bytes(head[4:8], "big")
    if version not in VERSIONS and swapped in range(1, 256):
        raise ModelFileError("is a big-endian GGUF file; convert the model for a little-endian machine")
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise UnsupportedModelError(f"has GGUF version {version}, known are {known}; convert the model again")


def _is_key(name: str) -> bool:
    """Whether a field is metadata of the file; the reader adds its own under this prefix."""
    return not name.startswith("GGUF.")


def _plain_value(name: str, field: gguf.ReaderField) -> Any:
    try:
        if field.types == _STRINGS:
            return [value.decode() for value in field.parts[-1]]
        return field.contents()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"metadata key {name} holds text that is not UTF-8; {_DAMAGED}") from error


def _check_whole(metadata: Mapping[str, Any]) -> None:
    count = metadata.get(_SPLIT_KEY, 1)
    if count != 1 and count != 0:
        raise UnsupportedModelError(
            f"is one of {count} parts of a split model ({_SPLIT_KEY}); join them with llama-gguf-split --merge first"
        )


def _strings(content: memoryview, start: int, count: int) -> tuple[list[bytes], int]:
    """Return the bytes of `count` strings, each behind its 64-bit length, and how many they are in all."""
    values: list[bytes] = []
    end, read, size = start, _COUNT.unpack_from, _COUNT.size
    try:
        for _ in range(count):  # a vocabulary has some 100,000; views of them would keep the garbage collector busy
            first = end + size
            end = first + read(content, end)[0]
            values.append(content[first:end].tobytes())
    except (struct.error, OverflowError):
        end = len(content) + 1
    if end > len(content):
        raise ValueError(f"a list of {count} strings reaches behind the end of the file")
    return values, end - start


def _locate(field: gguf.ReaderField, data_start: int, content: npt.NDArray[np.uint8]) -> GgufTensor:
    _, name_bytes, n_dims, dims, type_code, offset = field.parts
    name, ne = bytes(name_bytes).decode(), tuple(int(extent) for extent in dims)
    if not 1 <= len(ne) == int(n_dims[0]) <= MAX_DIMS or min(ne) < 1:
        raise ModelFileError(f"tensor {name} has {int(n_dims[0])} extents {list(ne)}; {_DAMAGED}")
    kind = ELEMENT_TYPES.get(int(type_code[0]))
    if kind is None:
        raise UnsupportedModelError(_unknown_type(name, int(type_code[0])))
    if ne[0] % kind.block_size:
        raise ModelFileError(f"tensor {name} of {kind.name} has rows of {ne[0]}, no whole blocks of {kind.block_size}")
    start = data_start + int(offset[0])
    end = start + kind.row_nbytes(ne[0]) * math.prod(ne[1:])
    if end > len(content):
        raise ModelFileError(
            f"tensor {name} ends at byte {end} of a file of {len(content)}: the file is truncated; download it again"
        )
    return GgufTensor(name, kind, ne, content[start:end], start)


def _unknown_type(name: str, code: int) -> str:
    listed = {member.value: member.name for member in gguf.GGMLQuantizationType}
    known = ", ".join(kind.name for kind in ELEMENT_TYPES.values())
    what = listed.get(code, f"number {code}")
    return f"tensor {name} has the element type {what}, which is not supported; supported: {known}"
