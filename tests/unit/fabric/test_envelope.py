"""The fabric's own frames: told from headers by their first byte, refused when malformed."""

import pytest

from rpc_backend.errors import RemoteProtocolError
from rpc_backend.fabric.envelope import MARK, Envelope, Say, read_envelope
from rpc_backend.protocol import ClientConversation
from rpc_backend.protocol.commands import HELLO
from rpc_backend.protocol.records import Hello


def read(*frames):
    return read_envelope([memoryview(frame) for frame in frames])


def test_what_is_written_is_read():
    assert read(Envelope(Say.READY).encode()) == Envelope(Say.READY)
    assert read(Envelope(Say.DECLINED).encode()) == Envelope(Say.DECLINED)
    assert read(Envelope(Say.PAYLOADS, (5, 1 << 40)).encode(), b"header") == Envelope(Say.PAYLOADS, (5, 1 << 40))


def test_messages_of_the_protocol_have_none():
    _, frames = ClientConversation().request(HELLO, Hello(1, 4, "digest", "build", [], 1))
    assert bytes(frames[0])[0] != MARK
    assert read(*frames) is None
    assert read(b"") is None
    assert read() is None


@pytest.mark.parametrize(
    "frames",
    [
        [bytes([MARK])],
        [bytes([MARK, 1, 0])],
        [bytes([MARK, 0, 0, 0])],
        [bytes([MARK, 9, 0, 0])],
        [bytes([MARK, 3, 0, 1]) + bytes(7), b"header"],
        [bytes([MARK, 3, 0, 1]) + bytes(9), b"header"],
        [bytes([MARK, 3, 0, 0]), b"header"],
        [bytes([MARK, 3, 0, 1]) + bytes(8)],
        [bytes([MARK, 3, 0, 1]) + bytes(8), b"header", b"payload"],
        [bytes([MARK, 1, 0, 0]), b"header"],
        [bytes([MARK, 2, 0, 1]) + bytes(8)],
        [bytes([MARK, 3, 0xFF, 0xFF]) + bytes(8 * 0xFFFF), b"header"],
    ],
)
def test_malformed_ones_are_refused(frames):
    with pytest.raises(RemoteProtocolError, match="envelope"):
        read(*frames)
