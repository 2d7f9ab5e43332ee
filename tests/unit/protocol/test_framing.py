"""One message as frames: declared and actual frames must agree, sizes are bounded first."""

import numpy as np
import pytest

from rpc_backend.errors import LimitError, LocalProtocolError, ProtocolError, RemoteProtocolError
from rpc_backend.protocol.codec import pack
from rpc_backend.protocol.framing import Kind, Limits, decode_message, encode_message

LIMITS = Limits(max_header_nbytes=200, max_payload_nbytes=1000, max_payloads=2)


def encoded(*payloads):
    return encode_message(Kind.REQUEST, 6, 3, 1, [b"body"], payloads, LIMITS)


def test_a_message_survives_and_its_payload_is_not_copied():
    data = np.arange(50, dtype=np.float32).reshape(5, 10)
    frames = encoded(memoryview(data), b"")
    message = decode_message(frames, LIMITS)
    assert message.header.kind is Kind.REQUEST
    assert (message.header.code, message.header.sequence, message.header.ref, message.header.body) == (
        6,
        3,
        1,
        [b"body"],
    )
    assert message.header.payload_sizes == [200, 0]
    data[0, 0] = 42
    assert np.frombuffer(message.payloads[0], np.float32)[0] == 42


def test_a_message_taken_apart_cannot_be_consumed():
    frames = encoded(b"first", b"second")
    for piece in (
        frames[:1],
        frames[:2],
        frames[1:],
        [frames[0], frames[2], frames[1]],
        [*frames, b""],
        frames * 2,
        [],
    ):
        with pytest.raises(RemoteProtocolError):
            decode_message(piece, LIMITS)


def test_a_payload_that_is_cut_or_padded_is_refused():
    header, payload = encoded(b"12345")
    for wrong in (b"1234", b"123456", b""):
        with pytest.raises(RemoteProtocolError, match="declares payloads"):
            decode_message([header, wrong], LIMITS)
    assert payload == b"12345"


def test_sizes_are_bounded_before_they_are_believed():
    with pytest.raises(LimitError, match="header of"):
        decode_message([bytes(201)], LIMITS)
    for sizes, match in (([1 << 40], "payload of"), ([1, 1, 1], "3 payloads")):
        with pytest.raises(LimitError, match=match):
            decode_message([pack([0, 6, 1, 0, [], sizes])], LIMITS)


def test_our_own_messages_are_bounded_too():
    with pytest.raises(LimitError, match="payload of 1001"):
        encoded(bytes(1001))
    with pytest.raises(LimitError, match="3 payloads"):
        encoded(b"", b"", b"")
    with pytest.raises(LimitError, match="header of"):
        encode_message(Kind.REQUEST, 6, 3, 1, [bytes(200)], (), LIMITS)
    with pytest.raises(LocalProtocolError, match="contiguous"):
        encoded(memoryview(bytes(20))[::2])


@pytest.mark.parametrize(
    "fields",
    [
        None,
        {},
        "text",
        [],
        [0, 6, 1, 0, []],
        [4, 6, 1, 0, [], []],
        [-1, 6, 1, 0, [], []],
        [0, True, 1, 0, [], []],
        [0, 6, "1", 0, [], []],
        [0, 6, 1, -1, [], []],
        [0, 6, 1, 0, {}, []],
        [0, 6, 1, 0, [], {}],
        [0, 6, 1, 0, [], [-1]],
        [0, 6, 1, 0, [], [None]],
        [0, 6, (1 << 64) - 1, 0, [], []],
    ],
)
def test_a_malformed_header_is_refused(fields):
    with pytest.raises(RemoteProtocolError):
        decode_message([pack(fields)], LIMITS)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff" * 50, b"GET / HTTP/1.1\r\n\r\n"])
def test_bytes_that_are_no_header_are_refused(data):
    with pytest.raises(ProtocolError):
        decode_message([data], LIMITS)


def test_a_newer_header_may_have_more_fields():
    assert decode_message([pack([0, 6, 1, 0, [], [], "more"])], LIMITS).header.code == 6
