"""FNV-1a of large contents against the definition, byte by byte."""

from __future__ import annotations

import random

import pytest

from rpc_backend.worker.fnv import Fnv1a


def by_definition(data: bytes) -> bytes:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value.to_bytes(8, "big")


@pytest.mark.parametrize(
    ("data", "known"), [(b"", "cbf29ce484222325"), (b"a", "af63dc4c8601ec8c"), (b"foobar", "85944171f73967e8")]
)
def test_known_hashes(data, known):
    """Source: the test vectors of the FNV specification."""
    hashed = Fnv1a()
    hashed.update(memoryview(data))
    assert hashed.digest().hex() == known


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 127, 128, 129, 1000, 4096, 70_001])
@pytest.mark.parametrize("fill", ["random", "zeros", "ones"])
def test_it_is_as_defined_whatever_the_length(nbytes, fill):
    rnd = random.Random(nbytes)
    data = {"random": rnd.randbytes(nbytes), "zeros": bytes(nbytes), "ones": b"\xff" * nbytes}[fill]
    hashed = Fnv1a()
    hashed.update(memoryview(data))
    assert hashed.digest() == by_definition(data)


def test_pieces_are_as_good_as_the_whole():
    data = random.Random(1).randbytes(1 << 17)
    hashed = Fnv1a()
    at = 0
    for nbytes in (0, 1, 100, 8191, 40_000, 1 << 17):
        hashed.update(memoryview(data)[at : at + nbytes])
        at += nbytes
    assert hashed.digest() == by_definition(data)


def test_a_piece_with_all_lanes():
    """More bytes than the shortest lanes take: they become longer."""
    data = random.Random(2).randbytes((1 << 21) + 12_345)
    hashed = Fnv1a()
    hashed.update(memoryview(data))
    assert hashed.digest() == by_definition(data)
