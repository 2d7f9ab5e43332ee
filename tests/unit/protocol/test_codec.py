"""Records and bytes: what is refused on each side, and that nothing large is claimed by small data."""

from dataclasses import dataclass, field
from typing import Any

import msgpack
import pytest

from rpc_backend.errors import LocalProtocolError, RemoteProtocolError
from rpc_backend.protocol import records
from rpc_backend.protocol.codec import decode_record, encode_record, pack, unpack


@dataclass(frozen=True, slots=True)
class Newer:
    number: int
    text: str
    data: bytes
    flag: bool
    share: float
    names: list[list[str]]
    counts: dict[str, list[int]]
    anything: list[Any]
    added: int = 7
    also_added: list[int] = field(default_factory=list)


GOOD = [1, "a", b"b", True, 0.5, [["x"], []], {"k": [1]}, [1, [b"", None]], 8, [9]]


def test_a_record_survives_the_round_trip():
    record = decode_record(Newer, unpack(memoryview(pack(GOOD))))
    assert record == Newer(*GOOD)
    assert encode_record(record) == GOOD


def test_fields_of_a_newer_minor_are_ignored_and_defaults_fill_an_older_one():
    assert decode_record(Newer, [*GOOD, "unknown", 3]) == Newer(*GOOD)
    assert decode_record(Newer, GOOD[:8]).added == 7
    with pytest.raises(RemoteProtocolError, match="'anything'"):
        decode_record(Newer, GOOD[:7])
    assert decode_record(records.Empty, []) == records.Empty()


@pytest.mark.parametrize(
    ("index", "value"),
    [
        (0, True),
        (0, 1.0),
        (0, None),
        (0, "1"),
        (0, 1 << 64),
        (0, -(1 << 63) - 1),
        (1, b"a"),
        (1, 3),
        (2, "b"),
        (3, 1),
        (4, 1),
        (4, "0.5"),
        (5, ["x"]),
        (5, [[1]]),
        (5, {}),
        (6, []),
        (6, {1: [1]}),
        (6, {"k": [True]}),
        (7, (1, 2)),
        (8, None),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_on_both_sides(index, value):
    values = [*GOOD[:index], value, *GOOD[index + 1 :]]
    name = Newer.__slots__[index]
    with pytest.raises(RemoteProtocolError, match=f"Newer.{name} must be"):
        decode_record(Newer, values)
    with pytest.raises(LocalProtocolError, match=f"Newer.{name} must be"):
        encode_record(Newer(*values))


@pytest.mark.parametrize("value", [None, {}, "list", 3])
def test_a_body_that_is_no_list_is_refused(value):
    with pytest.raises(RemoteProtocolError, match="list of fields"):
        decode_record(Newer, value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93\x01",
        b"\x01\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xffa",
        b"\xc6\xff\xff\xff\xffa",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xd4\x01\x00",
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xa2\xff\xfe",
        b"\x81\x01\x02",
        b"\x91" * 100_000,
    ],
)
def test_bytes_that_are_not_one_plain_value_are_refused(data):
    with pytest.raises(RemoteProtocolError, match="cannot be decoded"):
        unpack(memoryview(data))


def test_python_objects_are_never_made_from_bytes():
    with pytest.raises(RemoteProtocolError):
        unpack(memoryview(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94."))
    with pytest.raises(RemoteProtocolError):
        unpack(memoryview(msgpack.packb(msgpack.ExtType(1, b"x" * 20))))


@pytest.mark.parametrize("value", [[object()], [1 << 64], [-(1 << 63) - 1], [{1, 2}]])
def test_what_cannot_travel_is_our_own_bug(value):
    with pytest.raises(LocalProtocolError):
        pack(value)


def test_a_record_with_a_field_outside_the_wire_types_is_our_own_bug():
    @dataclass
    class Odd:
        value: set

    with pytest.raises(LocalProtocolError, match="cannot have a field"):
        decode_record(Odd, [1])
