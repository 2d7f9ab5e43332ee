"""Object files of kernels as images of memory.

Belongs here: reading what LLVM writes for 64-bit x86: sections, symbols, and the places that take an address. Must not
be here: memory that runs, or addresses (`code`).

Source: the System V ABI (object files) and its AMD64 supplement (relocation types). LLVM's own loader takes any object
file, but brings about 50 MiB into the process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_IDENTITY = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian
_RELOCATABLE, _X86_64 = 1, 62
_CONTENT, _SYMBOLS, _RELOCATIONS = 1, 2, 4  # kinds of sections
_WRITABLE, _IN_MEMORY = 1, 2  # flags of sections
_ADDRESS_64 = 1  # the type of a relocation that is an address of 64 bits
_UNWINDING = ".eh_frame"


class UnknownFormError(Exception):
    """An object file has something that only LLVM's loader knows."""


@dataclass(frozen=True, slots=True)
class Fixup:
    """The 8 bytes at `offset` of an image take an address: of `symbol`, or of the image without one; + `addend`."""

    offset: int
    symbol: str
    addend: int


@dataclass(frozen=True, slots=True)
class Image:
    """Code and constants as they lie in memory from a page on; `entry` is the offset of the function."""

    content: bytes
    entry: int
    fixups: tuple[Fixup, ...]


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    nbytes: int
    link: int
    info: int
    alignment: int
    entry_nbytes: int


class _Target(NamedTuple):
    """What a symbol stands for: one from outside, or an offset in the image; with neither it has no address."""

    name: str
    place: int | None


def read_image(symbol: str, object_file: bytes) -> Image:
    """Return the image of an object file whose function is `symbol`.

    Raises:
        UnknownFormError: the file is not of the form that kernels for 64-bit x86 have.
    """
    try:
        return _Reader(object_file).image(symbol)
    except (struct.error, IndexError, ValueError) as error:
        raise UnknownFormError(f"the object file of {symbol} cannot be read: {error}") from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        identity, kind, machine, _, _, _, start, _, _, _, _, _, n_sections, names = _HEADER.unpack_from(data)
        if not identity.startswith(_IDENTITY) or (kind, machine) != (_RELOCATABLE, _X86_64):
            raise UnknownFormError("not an object file for 64-bit x86")
        table = data[start : start + n_sections * _SECTION.size]
        self._data = data
        self._sections = [_Section(*fields) for fields in _SECTION.iter_unpack(table)]
        self._section_names = self._sections[names]
        self._places: dict[int, int] = {}  # of sections in the image

    def image(self, symbol: str) -> Image:
        content = self._lay_out()
        targets = [
            target for section in self._sections if section.kind == _SYMBOLS for target in self._targets(section)
        ]
        entries = [target.place for target in targets if target.name == symbol and target.place is not None]
        if len(entries) != 1:
            raise UnknownFormError(f"{symbol} is not a function of its object file")
        return Image(content, entries[0], tuple(self._fixups(targets)))

    def _lay_out(self) -> bytes:
        """Place the sections that lie in memory one after another, and return what they hold."""
        image = bytearray()
        for number, section in enumerate(self._sections):
            if not section.flags & _IN_MEMORY or self._text(self._section_names, section.name) == _UNWINDING:
                continue
            if section.kind != _CONTENT or section.flags & _WRITABLE:
                raise UnknownFormError("an object file with variables")
            image += bytes(-len(image) % max(1, section.alignment))
            self._places[number] = len(image)
            image += self._content(section)
        return bytes(image)

    def _targets(self, table: _Section) -> Iterator[_Target]:
        names = self._sections[table.link]
        for name, _, _, section, value, _ in _SYMBOL.iter_unpack(self._content(table)):
            start = self._places.get(section)
            yield _Target(self._text(names, name), None if start is None else start + value)

    def _fixups(self, targets: list[_Target]) -> Iterator[Fixup]:
        for section in self._sections:
            if section.kind != _RELOCATIONS or section.info not in self._places:
                continue
            for offset, kind, symbol, addend in _RELOCATION.iter_unpack(self._content(section)):
                name, place = targets[symbol]
                if kind != _ADDRESS_64 or (place is None and not name):
                    raise UnknownFormError(f"a relocation of type {kind} for {name or 'no symbol'}")
                own = self._places[section.info] + offset
                yield Fixup(own, name, addend) if place is None else Fixup(own, "", place + addend)

    def _content(self, section: _Section) -> bytes:
        return self._data[section.offset : section.offset + section.nbytes]

    def _text(self, names: _Section, offset: int) -> str:
        start = names.offset + offset
        return self._data[start : self._data.index(0, start)].decode()
