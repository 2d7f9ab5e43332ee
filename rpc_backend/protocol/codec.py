"""Records to plain lists and back, and those to bytes, within strict limits.

Belongs here: msgpack, and checks of records against their annotations. Must not be here: message headers.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgpack

from rpc_backend.errors import LocalProtocolError, ProtocolError, RemoteProtocolError

MAX_ARRAY_ITEMS = 1 << 17
_BUFFER_NBYTES = 4096  # msgpack's own 256 KiB cost more to get and give back than most messages to encode; it grows
INT_LOW, INT_HIGH = -(1 << 63), (1 << 64) - 1

RecordType = TypeVar("RecordType")
_Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: str
    check: _Check
    required: bool


def encode_record(record: Any) -> list[Any]:
    """Return the fields of a record as a list, checked.

    Raises:
        LocalProtocolError: a field does not hold what its annotation says.
    """
    layout = _layout(type(record))
    values = [getattr(record, item.name) for item in layout]
    _check_values(type(record), layout, values, LocalProtocolError)
    return values


def decode_record(cls: type[RecordType], values: object) -> RecordType:
    """Build a record from the list of its fields.

    Fields past the known ones come from a newer minor version and are ignored; missing ones need a default.

    Raises:
        RemoteProtocolError: not a list, too short, or a field of the wrong kind.
    """
    layout = _layout(cls)
    if not isinstance(values, list):
        raise RemoteProtocolError(f"{cls.__name__} must be a list of fields, not {type(values).__name__}")
    if len(values) < len(layout) and layout[len(values)].required:
        raise RemoteProtocolError(f"{cls.__name__} lacks its field {layout[len(values)].name!r}")
    known = values[: len(layout)]
    _check_values(cls, layout, known, RemoteProtocolError)
    return cls(*known)


def pack(value: list[Any]) -> bytes:
    """Encode plain lists, dicts, text, bytes and numbers.

    Raises:
        LocalProtocolError: it holds something else, or an integer over 64 bits.
    """
    try:
        packed = msgpack.packb(value, use_bin_type=True, buf_size=_BUFFER_NBYTES)
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"cannot encode a message: {error}") from error
    assert packed is not None, "packb returns None only for a packer of one's own"
    return packed


def unpack(data: memoryview) -> Any:
    """Decode one value that fills `data` exactly; nothing larger than `data` can be claimed inside.

    Raises:
        RemoteProtocolError: not msgpack, too deep, too long, extension types, text that is not UTF-8.
    """
    nbytes = data.nbytes
    try:
        return msgpack.unpackb(
            data, raw=False, strict_map_key=True, ext_hook=_refuse_extension, max_ext_len=0,
            max_str_len=nbytes, max_bin_len=nbytes, max_map_len=min(nbytes, MAX_ARRAY_ITEMS),
            max_array_len=min(nbytes, MAX_ARRAY_ITEMS),
        )  # fmt: skip
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise RemoteProtocolError(f"a header of {nbytes} bytes cannot be decoded: {error}") from error


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not allowed")


def _check_values(cls: type, layout: tuple[_Field, ...], values: list[Any], error_class: type[ProtocolError]) -> None:
    for item, value in zip(layout, values, strict=False):
        if not item.check(value):
            shown = repr(value)[:60]
            raise error_class(f"{cls.__name__}.{item.name} must be {item.kind}, not {shown}")


@cache
def _layout(cls: type) -> tuple[_Field, ...]:
    hints = get_type_hints(cls)
    return tuple(
        _Field(item.name, _kind_text(hints[item.name]), _checker(hints[item.name]), _is_required(item))
        for item in fields(cls)
    )


def _is_required(item: Any) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _kind_text(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)


def _checker(annotation: Any) -> _Check:
    """Return the check of an annotation; annotations outside the wire's types are our own bug."""
    plain: dict[Any, _Check] = {
        Any: lambda value: True,
        int: _is_int,
        float: lambda value: isinstance(value, float),
        bool: lambda value: isinstance(value, bool),
        str: lambda value: isinstance(value, str),
        bytes: lambda value: isinstance(value, bytes),
    }
    if annotation in plain:
        return plain[annotation]
    if get_origin(annotation) is list:
        return _list_checker(get_args(annotation)[0])
    if get_origin(annotation) is dict:
        return _dict_checker(*get_args(annotation))
    if isinstance(annotation, types.UnionType):
        checks = [_checker(choice) for choice in get_args(annotation)]
        return lambda value: any(check(value) for check in checks)
    if annotation is types.NoneType:
        return lambda value: value is None
    raise LocalProtocolError(f"a record cannot have a field of type {annotation}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and INT_LOW <= value <= INT_HIGH


def _list_checker(item: Any) -> _Check:
    if item is Any:
        return lambda value: isinstance(value, list)
    check = _checker(item)
    return lambda value: isinstance(value, list) and all(map(check, value))


def _dict_checker(key: Any, item: Any) -> _Check:
    key_check, item_check = _checker(key), _checker(item)

    def check(value: Any) -> bool:
        return isinstance(value, dict) and all(key_check(k) and item_check(v) for k, v in value.items())

    return check
