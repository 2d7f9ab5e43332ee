"""What is copied, what is referenced, and when the bytes are free again."""

import pytest

from rpc_backend.errors import DeadlineError, LocalProtocolError
from rpc_backend.fabric.outgoing import COPY_BELOW_NBYTES, prepare

BIG = COPY_BELOW_NBYTES


def test_small_frames_are_snapshots_and_their_ticket_is_done_at_once():
    data = bytearray(b"a" * 100)
    outgoing = prepare([b"header", data])
    data[:] = b"b" * 100
    assert outgoing.frames == [b"header", b"a" * 100]
    assert outgoing.nbytes == 106
    assert outgoing.ticket.done
    outgoing.ticket.wait(0)


def test_large_frames_are_references_until_they_are_dropped():
    data = bytearray(b"a" * BIG)
    outgoing = prepare([b"header", data])
    data[0] = ord("b")
    assert outgoing.frames[1].bytes[:2] == b"ba", "copy=False keeps a reference, not a snapshot"
    ticket = outgoing.ticket
    assert not ticket.done
    with pytest.raises(DeadlineError, match=r"within 0\.01 s"):
        ticket.wait(0.01)
    del outgoing
    ticket.wait(5)
    assert ticket.done
    data.append(0)  # the buffer is no longer exported


@pytest.mark.parametrize("frames", [[], [memoryview(bytes(BIG * 4))[::2]]])
def test_a_message_without_frames_or_with_scattered_memory_is_our_own_bug(frames):
    with pytest.raises(LocalProtocolError):
        prepare(frames)
